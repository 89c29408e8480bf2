"""Automatic names, by the rules of the real provider."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from localcloud.provider.wire import UNKNOWN, Properties, sha1

_RANDOM_DIGITS = 7
_PREFIX_SUFFIX_BYTES = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How a type is named when the program gives no name.

    Attributes:
        property: the input that carries the name.
        prefix_property: the input that asks for a prefix and a random rest; None where the type has none.
        limit: most characters of a made-up name.
        lower: the cloud takes lower case only.
        start: what each name must begin with.
    """

    property: str = "name"
    prefix_property: str | None = None
    limit: int = 255
    lower: bool = False
    start: str = ""

    def automatic(self, logical_name: str, seed: bytes) -> str:
        """`<logical name>-<7 hexadecimal digits>`, cut to the limit; the same for the same seed."""
        digits = sha1(seed.hex())[:_RANDOM_DIGITS] if seed else secrets.token_hex(4)[:_RANDOM_DIGITS]
        longest = self.limit - len(digits) - 1 - len(self.start)
        name = f"{self.start}{logical_name[:longest]}-{digits}"
        return name.lower() if self.lower else name

    def from_prefix(self, inputs: Properties) -> str:
        """The name at creation: the given one, or the prefix with 26 random digits behind it."""
        name = inputs.get(self.property)
        if name is not None:
            return str(name)
        prefix = inputs.get(self.prefix_property or "", "")
        return f"{prefix}{secrets.token_hex(_PREFIX_SUFFIX_BYTES)}"

    def is_asked_for(self, inputs: Properties) -> bool:
        """Whether the program itself names the resource, by name or by prefix."""
        return self.property in inputs or (self.prefix_property is not None and self.prefix_property in inputs)

    def keeps_name(self, old: Properties, new: Properties) -> bool:
        """Whether a replacement would need the name that the old resource still holds."""
        name = new.get(self.property)
        return name is not None and name != UNKNOWN and name == old.get(self.property)
