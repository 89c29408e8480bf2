"""Values of the lists' placeholders in one environment, and pattern matching with them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context, written

_PART: Final = r"[A-Za-z0-9_+=,.@-]+"
"""One part of a name: ASCII without a wildcard, policy variable, `/` or `:`."""
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
"""Every placeholder, with the expression that it matches if the settings do not name it. `suffix` is Pulumi's suffix,
`underscored` is the environment in the id of a custom role, and `word` is any one part.
"""
_OF_REGISTRY: Final = re.compile(r"([0-9]{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com/")
_PLACEHOLDER: Final = re.compile(rf"\{{({'|'.join(_UNNAMED)})\}}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the settings of an environment, by placeholder. A placeholder is absent if the settings do not
    name it.
    """

    of: tuple[tuple[str, frozenset[str]], ...] = ()
    has_internet_route: bool = False
    """Whether the network has its own route to the internet."""

    def named(self, placeholder: str) -> frozenset[str] | None:
        return dict(self.of).get(placeholder)


def names_of(context: Context) -> Names:
    """Return the names in the settings. Without settings, the result is empty."""
    return _read(context.fleet, context.environment, context.region)


@lru_cache(maxsize=8)
def _read(fleet: str, environment: str, region: str) -> Names:
    settings = written(fleet)
    environment = str(settings.get("environment") or environment)
    orders, control, bucket, network = (_map(settings, key) for key in ("orders", "control", "bucket", "network"))
    secrets = (orders.get("private_key"), *_map(control, "secrets").values())
    found: dict[str, Any] = {
        "account": [settings.get("account")],
        "project": [settings.get("account")],
        "environment": [environment],
        "underscored": [environment.replace("-", "_")],
        "service": _listed(network.get("private_services")) if settings else None,
        "region": [region],
        "bucket": [bucket.get("name")],
        "enginekey": _paths([settings.get("engine_key")]),
        "secret": _paths(secrets),
        "publisher": _listed(bucket.get("publishers")),
        # with settings, an empty result means that the placeholder matches nothing
        "registry": _OF_REGISTRY.findall(fleet) if settings else None,
    }
    texts = {key: frozenset(text for text in values or () if isinstance(text, str)) for key, values in found.items()}
    optional = ("registry", "service") if settings else ()
    return Names(
        of=tuple((key, values - {""}) for key, values in texts.items() if values - {""} or key in optional),
        has_internet_route=network.get("internet") == "nat",
    )


def _paths(names: Iterable[Any]) -> list[str]:
    """Return names of secrets as they appear in ARNs."""
    return [name.lstrip("/") for name in names if isinstance(name, str)]


def _map(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if is_map(found) else {}


def _listed(value: Any) -> list[Any]:
    return value if is_list(value) else []


def fits(pattern: str, text: str, names: Names) -> bool:
    """Return whether everything that a text matches is within a pattern.

    `{placeholder}` matches a name from the settings, or one part of a name if the settings have none; it never
    matches a wildcard. A `*` at the end matches anything, and another `*` matches anything without a colon. A
    wildcard in the text matches only there.
    """
    return text.isascii() and bool(_compiled(pattern, names, True, False).fullmatch(text))


def matches(pattern: str, text: str, names: Names, *, of_any_case: bool = False) -> bool:
    """Return whether a text matches a pattern. A `*` in the pattern matches only the character `*`."""
    return text.isascii() and bool(_compiled(pattern, names, False, of_any_case).fullmatch(text))


def filled(pattern: str, names: Names) -> str:
    """Return a pattern for messages. Placeholders with exactly one name in the settings are replaced by that name."""

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
    # without a name, nothing matches
    return f"(?:{'|'.join(sorted(map(re.escape, known))) or '(?!)'})"
