"""What the placeholders of the lists stand for in one environment, and patterns with them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context, written

_PART: Final = r"[A-Za-z0-9_+=,.@-]+"
"""One part of a name: no wildcard, no policy variable, no `/`, no `:`, ASCII alone."""
_UNNAMED: Final[Mapping[str, str]] = {
    "account": r"[0-9]{12}",
    "bucket": _PART,
    "enginekey": r"[A-Za-z0-9_./-]+",
    "environment": _PART,
    "project": _PART,
    "region": _PART,
    "publisher": r"arn:aws:iam::[0-9]{12}:(?:role|user)/[A-Za-z0-9_+=,.@/*-]+",
    "registry": r"[0-9]{12}",
    "secret": r"[A-Za-z0-9_./-]+",
    "service": _PART,
    "suffix": r"[0-9a-f]{7}",
    "underscored": r"[a-z0-9_]+",
    "word": _PART,
}
"""Every placeholder, and what stands for it where the settings do not name it. `suffix` is Pulumi's, `underscored` is
the environment in the id of a custom role, `word` any one part."""
_OF_REGISTRY: Final = re.compile(r"([0-9]{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com/")
_PLACEHOLDER: Final = re.compile(rf"\{{({'|'.join(_UNNAMED)})\}}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names that the settings of an environment give, by placeholder. Absent: not named."""

    of: tuple[tuple[str, frozenset[str]], ...] = ()
    has_way_out: bool = False
    """Whether its network leads to the internet by itself."""

    def named(self, placeholder: str) -> frozenset[str] | None:
        return dict(self.of).get(placeholder)


def names_of(context: Context) -> Names:
    """The names in the settings; an empty one where there are no settings."""
    return _read(context.fleet, context.environment, context.region)


@lru_cache(maxsize=8)
def _read(fleet: str, environment: str, region: str) -> Names:
    said = written(fleet)
    environment = str(said.get("environment") or environment)
    orders, control, bucket, network = (_map(said, key) for key in ("orders", "control", "bucket", "network"))
    secrets = (orders.get("private_key"), *_map(control, "secrets").values())
    found: dict[str, Any] = {
        "account": [said.get("account")],
        "project": [said.get("account")],
        "environment": [environment],
        "underscored": [environment.replace("-", "_")],
        "service": _listed(network.get("private_services")) if said else None,
        "region": [region],
        "bucket": [bucket.get("name")],
        "enginekey": _paths([said.get("engine_key")]),
        "secret": _paths(secrets),
        "publisher": _listed(bucket.get("publishers")),
        # absent in settings that have none: then nothing stands for them
        "registry": _OF_REGISTRY.findall(fleet) if said else None,
    }
    texts = {key: frozenset(text for text in values or () if isinstance(text, str)) for key, values in found.items()}
    optional = ("registry", "service") if said else ()
    return Names(
        of=tuple((key, values - {""}) for key, values in texts.items() if values - {""} or key in optional),
        has_way_out=network.get("internet") == "nat",
    )


def _paths(names: Iterable[Any]) -> list[str]:
    """Names of secrets as ARNs have them."""
    return [name.lstrip("/") for name in names if isinstance(name, str)]


def _map(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if is_map(found) else {}


def _listed(value: Any) -> list[Any]:
    return value if is_list(value) else []


def fits(pattern: str, text: str, names: Names) -> bool:
    """Whether everything that a text stands for lies within a pattern.

    `{placeholder}`: a name of the settings, or one part of a name where they have none; never a wildcard. A `*` at
    the end stands for anything, another one for anything without a colon: a text's own wildcard fits there alone.
    """
    return text.isascii() and bool(_compiled(pattern, names, True, False).fullmatch(text))


def says(pattern: str, text: str, names: Names, *, of_any_case: bool = False) -> bool:
    """Whether a text is a pattern's; a `*` of the pattern is that character and nothing else."""
    return text.isascii() and bool(_compiled(pattern, names, False, of_any_case).fullmatch(text))


def filled(pattern: str, names: Names) -> str:
    """A pattern for people, with the one name that the settings give."""

    def name(found: re.Match[str]) -> str:
        known = names.named(found[1])
        return next(iter(known)) if known is not None and len(known) == 1 else found[0]

    return _PLACEHOLDER.sub(name, pattern)


@lru_cache(maxsize=4096)
def _compiled(pattern: str, names: Names, stars: bool, of_any_case: bool) -> re.Pattern[str]:
    parts: list[str] = []
    for at, piece in enumerate(_PLACEHOLDER.split(pattern)):
        # every second piece is the name of a placeholder
        parts.append(_of_placeholder(piece, names) if at % 2 else re.escape(piece))
    text = "".join(parts)
    if stars:
        end = re.escape("*")
        last = text.removesuffix(end)
        text = last.replace(end, "[^:]*") + ("" if last == text else ".*")
    return re.compile(text, re.DOTALL | (re.IGNORECASE if of_any_case else 0))


def _of_placeholder(name: str, names: Names) -> str:
    known = names.named(name)
    if known is None:
        return f"(?:{_UNNAMED[name]})"
    # without one, no text
    return f"(?:{'|'.join(sorted(map(re.escape, known))) or '(?!)'})"
