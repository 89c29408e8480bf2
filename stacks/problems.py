"""What can be wrong with settings, said as path, value and remedy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

FORMS: Final[Mapping[str, str]] = {
    r"^[a-z][a-z0-9-]{0,15}$": "small letters, digits and dashes, a letter first, 16 at most",
    r"^[a-z][a-z0-9-]{0,19}$": "small letters, digits and dashes, a letter first, 20 at most",
    r"^[a-z][a-z0-9_-]{0,62}$": "small letters, digits, dashes and underlines, a letter first, 63 at most",
    r"^[a-z]+-[a-z]+(-[a-z]+)?-?\d+-?[a-z]$": "a zone as us-east-1a or us-central1-a",
    r"^[a-z0-9][a-z0-9.-]+$": "a machine type as g6.xlarge or g2-standard-4",
    r"^[a-z0-9][a-z0-9./_:-]*@sha256:[0-9a-f]{64}$": "an image pinned by digest, as name@sha256:<64 hex digits>",
    r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$": "small letters, digits and dashes, 3 to 63",
    r"^([01]\d|2[0-3]):[0-5]\d$": "a time of day as 08:00",
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


def from_validation(error: ValidationError, root: str) -> list[Problem]:
    """The problems that the typed schema found, below the key `root`; one for each place."""
    found: dict[str, Problem] = {}
    for item in error.errors():
        kind, context = item["type"], item.get("ctx") or {}
        path = ".".join([root, *(str(part) for part in item["loc"] if part not in _UNIONS)])
        wrong, remedy = _WRONG.get(kind, _plain(item["msg"])), _REMEDIES.get(kind, _OTHER_REMEDY)
        if kind == "string_pattern_mismatch":
            wrong, remedy = (
                "has the wrong form",
                f"write {FORMS.get(str(context.get('pattern')), 'it as the schema says')}",
            )
        elif kind in ("enum", "literal_error", "union_tag_invalid"):
            allowed = str(context.get("expected") or context.get("expected_tags"))
            wrong, remedy = "is not among the choices", f"choose one of {allowed}"
        elif kind == "tuple_type" and isinstance(item["input"], str):
            remedy = f"write a list: [{item['input']}]"
        value = None if kind == "missing" else item["input"]
        found.setdefault(path, Problem(path=path, wrong=wrong, value=value, remedy=remedy))
    # a list whose items are wrong is also called too short: the items say it better
    return [p for p in found.values() if p.wrong != "is empty" or not any(k.startswith(p.path + ".") for k in found)]


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
