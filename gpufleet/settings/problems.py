"""Errors in settings, with path and value."""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gpufleet.domain.secrets import find_secrets

UNKNOWN_KEY: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""Pydantic's error types for an unknown key of a model or a dataclass."""
_UNIONS: Final = frozenset({"made", "given"})
"""Tags of unions that pydantic adds to a path; they are not keys in a file."""
_LONGEST: Final = 200
"""Maximum characters of a shown message: it can quote a value of any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error: its path, what is wrong and, unless the message contains it, how to fix it."""

    path: str
    wrong: str
    remedy: str = ""
    value: Any = None
    """Never a secret: pull requests show problems."""

    def __post_init__(self) -> None:
        if kinds := find_secrets(self.wrong):
            object.__setattr__(self, "wrong", f"holds {kinds[0]}")
        if self.value is not None and (kinds := find_secrets(repr(self.value))):
            object.__setattr__(self, "value", f"<{kinds[0]}, not shown>")

    def __str__(self) -> str:
        shown = "" if self.value is None else f" (is {_short(self.value)})"
        return f"{self.path}: {self.wrong}{shown}{self.remedy and f'; {self.remedy}'}"


class SettingsError(ValueError):
    """The settings are invalid. Each of `problems` is one line of the message."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__(f"{source}: {count}{lines}")


def from_validation(error: ValidationError, *root: str) -> list[Problem]:
    """Convert a validation error of the value at the path `root` to problems: one per path."""
    found: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        path = ".".join([*root, *(str(part) for part in item["loc"] if part not in _UNIONS)]) or "(document)"
        if item["type"] == "too_short" and item["input"]:
            continue  # all items of a list are invalid: their own errors are clearer
        if item["type"] in UNKNOWN_KEY:
            problem = Problem(path=path, wrong="is not a known setting", value=item["input"])
        elif item["type"] == "missing":
            problem = Problem(path=path, wrong="is missing")
        else:
            problem = Problem(path=path, wrong=_sentence(item["msg"]), value=item["input"])
        found.setdefault(path, problem)
    return list(found.values())


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return (text[:1].lower() + text[1:_LONGEST]).replace("tuple", "list")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
