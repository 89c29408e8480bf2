"""Errors in settings, each with path and value."""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gpufleet.domain.secrets import find_secrets

UNKNOWN_KEY: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""Pydantic's types of error for a key that a model, or a dataclass, does not have."""
_UNIONS: Final = frozenset({"made", "given"})
"""Names that pydantic adds to a path and no file has."""
_LONGEST: Final = 200
"""Characters of a message that are shown: it may quote a value of any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error: where it is, what is wrong and, where the message does not say it, what to do."""

    path: str
    wrong: str
    remedy: str = ""
    value: Any = None
    """Never a secret: problems are shown in pull requests."""

    def __post_init__(self) -> None:
        if kinds := find_secrets(self.wrong):
            object.__setattr__(self, "wrong", f"holds {kinds[0]}")
        if self.value is not None and (kinds := find_secrets(repr(self.value))):
            object.__setattr__(self, "value", f"<{kinds[0]}, not shown>")

    def __str__(self) -> str:
        shown = "" if self.value is None else f" (is {_short(self.value)})"
        return f"{self.path}: {self.wrong}{shown}{self.remedy and f'; {self.remedy}'}"


class SettingsError(ValueError):
    """The settings cannot be used. Each of `problems` is one line."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{source}: {len(problems)} errors{lines}")


def from_validation(error: ValidationError, *root: str) -> list[Problem]:
    """What a model refuses of the value at the path `root`: one problem for each place."""
    found: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        path = ".".join([*root, *(str(part) for part in item["loc"] if part not in _UNIONS)]) or "(document)"
        if item["type"] == "too_short" and item["input"]:
            continue  # a list of which each item is refused: the items say it better
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
