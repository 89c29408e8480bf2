"""What can be wrong with settings, said as path, value and remedy."""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

_REMEDIES: Final = {
    "missing": "add it",
    "extra_forbidden": "remove it, or look for the right name in `gpufleet settings schema`",
    "string_pattern_mismatch": "write it in the form shown",
    "int_type": "write a whole number",
    "enum": "choose one of those",
    "literal_error": "choose one of those",
    "too_short": "name at least one",
}
_OTHER_REMEDY: Final = "correct it; `gpufleet settings schema` says what fits"


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
    """The problems that the typed schema found, below the key `root`."""
    return [
        Problem(
            path=".".join([root, *(str(part) for part in item["loc"])]),
            wrong=item["msg"].removeprefix("Value error, ").lower().replace("field required", "is missing"),
            value=None if item["type"] == "missing" else item["input"],
            remedy=_REMEDIES.get(item["type"], _OTHER_REMEDY),
        )
        for item in error.errors()
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
