"""What can be wrong with settings, said as path, value and remedy."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError

from gpufleet.domain.secrets import find_secrets

FORMS: Final[Mapping[str, str]] = {
    r"^([a-z]|[a-z][a-z0-9-]{0,14}[a-z0-9])$": "small letters, digits and inner dashes, a letter first, 16 at most",
    r"^([a-z]|[a-z][a-z0-9-]{0,18}[a-z0-9])$": "small letters, digits and inner dashes, a letter first, 20 at most",
    r"^[a-z][a-z0-9_-]{0,62}$": "small letters, digits, dashes and underlines, a letter first, 63 at most",
    r"^[a-z]+-[a-z]+(-[a-z]+)?-?\d+-?[a-z]$": "a zone as us-east-1a or us-central1-a",
    r"^[a-z0-9][a-z0-9.-]+$": "a machine type as g6.xlarge or g2-standard-4",
    r"^[a-z0-9][a-z0-9./_:-]*@sha256:[0-9a-f]{64}$": "an image pinned by digest, as name@sha256:<64 hex digits>",
    r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$": "small letters, digits and dashes, 3 to 63",
    r"^([01]\d|2[0-3]):[0-5]\d$": "a time of day as 08:00",
    r"^[0-9a-f]{64}$": "the 64 hex digits that `gpufleet bundle` prints",
    r"^[UW][A-Z0-9]{2,20}$": "a Slack id as U0123ABCD",
    r"^(aws|gcp):.+": "a sku as aws:vpc:nat-gateway",
    r"\S": "some text",
}
"""What each pattern of the settings asks for, in words."""

_REMEDIES: Final = {
    "missing": "add it",
    "extra_forbidden": "remove it, or look for the right name in `gpufleet settings schema`",
    "int_type": "write a whole number, without quotes",
    "int_from_float": "write a whole number",
    "bool_type": "write true or false",
    "string_type": "write text, in quotes if it looks like a number",
    "tuple_type": "write a list",
    "dict_type": "write a map",
    "model_type": "write a map",
    "too_short": "name at least one",
    "date_from_datetime_parsing": "write a day as 2027-03-01",
    "timezone_aware": "write a time with its zone, as 2026-12-01T11:30:00Z",
    "datetime_from_date_parsing": "write a time as 2026-12-01T11:30:00Z",
    "date_from_datetime_inexact": "write a day as 2027-03-01",
    "float_type": "write a number, without quotes",
    "finite_number": "write a number",
    "decimal_parsing": 'write an amount as "24000" or "0.84"',
    "decimal_type": 'write an amount as "24000" or "0.84"',
    "union_tag_not_found": "add kind: made (a network of its own) or kind: given (somebody else's)",
}
_WRONG: Final = {
    "missing": "is missing",
    "extra_forbidden": "is no setting",
    "int_type": "is no whole number",
    "int_from_float": "is no whole number",
    "bool_type": "is neither true nor false",
    "string_type": "is no text",
    "tuple_type": "is no list",
    "dict_type": "is no map",
    "model_type": "is no map",
    "too_short": "is empty",
    "date_from_datetime_parsing": "is no day",
    "timezone_aware": "has no time zone",
    "datetime_from_date_parsing": "is no time",
    "date_from_datetime_inexact": "is no day",
    "float_type": "is no number",
    "finite_number": "is no finite number",
    "decimal_parsing": "is no amount",
    "decimal_type": "is no amount",
    "union_tag_not_found": "says no kind",
}
_OTHER_REMEDY: Final = "correct it; `gpufleet settings schema` says what fits"
_UNIONS: Final = frozenset({"made", "given"})
"""Names that pydantic adds to a path and no file has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, where, and what to do."""

    path: str
    wrong: str
    remedy: str
    value: Any = None
    """Never a secret: problems are shown in pull requests."""

    def __post_init__(self) -> None:
        if self.value is not None and (kinds := find_secrets(repr(self.value))):
            object.__setattr__(self, "value", f"<{kinds[0]}, not shown>")

    def __str__(self) -> str:
        shown = "" if self.value is None else f" (is {_short(self.value)})"
        return f"{self.path}: {self.wrong}{shown}; {self.remedy}"


class SettingsError(ValueError):
    """The settings cannot be used. Each of `problems` is one line."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{source}: {len(problems)} to mend{lines}")


def in_file(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The place in the file that pydantic means."""
    return tuple(part for part in loc if part not in _UNIONS)


def from_validation(error: ValidationError, root: str, schema: Mapping[str, Any]) -> list[Problem]:
    """The problems that the typed schema found, below the key `root`; one for each place."""
    found: dict[str, Problem] = {}
    # a required key that is written wrong is one mistake, and not also a missing one
    meant: set[tuple[str | int, ...]] = set()
    for item in sorted(error.errors(), key=lambda item: item["type"] == "missing"):
        place = in_file(item["loc"])
        if item["type"] == "missing" and place in meant:
            continue
        wrong, remedy = _words(item["type"], item["msg"], item.get("ctx") or {}, item["input"])
        if item["type"] == "extra_forbidden" and (alike := _alike(schema, place)):
            remedy = f"did you mean {' or '.join(alike)}?"
            meant |= {(*place[:-1], name) for name in alike[:1]}
        path = ".".join([root, *map(str, place)])
        value = None if item["type"] == "missing" else item["input"]
        found.setdefault(path, Problem(path=path, wrong=wrong, value=value, remedy=remedy))
    # a list whose items are wrong is also called too short: the items say it better
    return [p for p in found.values() if p.wrong != "is empty" or not any(k.startswith(p.path + ".") for k in found)]


def _words(kind: str, message: str, context: Mapping[str, Any], value: Any) -> tuple[str, str]:
    """What is wrong, and the remedy."""
    if kind == "string_pattern_mismatch":
        return "has the wrong form", f"write {FORMS.get(str(context.get('pattern')), 'it as the schema says')}"
    if kind in ("enum", "literal_error", "union_tag_invalid"):
        allowed = context.get("expected") or context.get("expected_tags")
        return "is not among the choices", f"choose one of {allowed}"
    if kind == "tuple_type" and isinstance(value, str):
        return _WRONG[kind], f"write a list: [{value}]"
    for name, word, remedy in _LIMITS:
        if kind == name:
            limit = next(iter(context.values()))
            return f"is {word} {limit:g}", f"write {remedy.format(f'{limit:g}')}"
    wrong, write, form = _plain(message).partition(": write ")
    if kind == "value_error" and write:
        return wrong, f"write {form}"
    return _WRONG.get(kind, _plain(message)), _REMEDIES.get(kind, _OTHER_REMEDY)


_LIMITS: Final = (
    ("greater_than_equal", "below", "{} or more"),
    ("greater_than", "not above", "more than {}"),
    ("less_than_equal", "above", "{} or less"),
)


def _alike(schema: Mapping[str, Any], place: tuple[str | int, ...]) -> list[str]:
    """The settings of that map whose names come near."""
    at: Any = schema
    for step in place[:-1]:
        at = _child(schema, at, step)
    names = {name for option in _options(schema, at) for name in option.get("properties", ())}
    return get_close_matches(str(place[-1]), sorted(names), n=2, cutoff=0.6)


def _child(schema: Mapping[str, Any], at: Any, step: str | int) -> Any:
    for option in _options(schema, at):
        if isinstance(step, int) and "items" in option:
            return option["items"]
        if step in option.get("properties", {}):
            return option["properties"][step]
    return {}


def _options(schema: Mapping[str, Any], at: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A schema without references: itself, or each of its alternatives."""
    if "$ref" in at:
        return _options(schema, schema["$defs"][at["$ref"].rpartition("/")[2]])
    alternatives = [*at.get("anyOf", ()), *at.get("oneOf", ())]
    return [o for one in alternatives for o in _options(schema, one)] if alternatives else [at]


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
