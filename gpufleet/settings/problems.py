"""Errors in settings, with path and value."""

from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpufleet.domain.parsed import is_list, is_map
from gpufleet.domain.printable import value_text
from gpufleet.domain.secrets import find_secrets
from gpufleet.settings.expected import expectation

UNKNOWN_KEY: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""Pydantic's error types for an unknown key of a model or a dataclass."""
_NO_KEYS: Final = frozenset({"made", "given", "[key]"})
"""Tags of unions, and a mark of keys, that pydantic adds to a path; they are not keys in a file."""
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
        shown = ""
        if self.value is not None:
            got = _short(self.value)
            is_open = self.wrong.startswith("expected ") and ", got " not in self.wrong
            shown = f", got {got}" if is_open else f" (is {got})"
        return f"{self.path}: {self.wrong}{shown}{self.remedy and f'; {self.remedy}'}"


class SettingsError(ValueError):
    """The settings are invalid. Each of `problems` is one line of the message."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__(f"{source}: {count}{lines}")


def from_validation(error: ValidationError, *root: str, model: type[BaseModel] | None = None) -> list[Problem]:
    """Convert a validation error of the value at the path `root` to problems: one per path.

    `model`: the form of the whole file, whose names are suggested for an unknown one.
    """
    found: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        path = ".".join([*root, *(str(part) for part in item["loc"] if part not in _NO_KEYS)]) or "(document)"
        if item["type"] == "too_short" and item["input"]:
            continue  # all items of a list are invalid: their own errors are clearer
        problem = _problem(path, item, model)
        found.setdefault(problem.path, problem)
    return list(found.values())


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of all fields of a model and of the models in it."""
    found: set[str] = set()
    left: list[Any] = [model.model_json_schema()]
    while left:
        one: Any = left.pop()
        if is_map(one):
            found |= {str(name) for name in one.get("properties", {})}
            left += one.values()
        elif is_list(one):
            left += one
    return frozenset(found)


def _problem(path: str, item: ErrorDetails, model: type[BaseModel] | None) -> Problem:
    kind, value = item["type"], item["input"]
    if kind in UNKNOWN_KEY:
        key = str(item["loc"][-1])
        # a name that exists elsewhere is not known here
        near = [] if model is None else get_close_matches(key, _names(model) - {key}, 1, 0.75)
        remedy = f"did you mean {near[0]}?" if near else ""
        return Problem(path=path, wrong="is not a known setting", value=value, remedy=remedy)
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        # the key that selects the form of a map, such as `kind` of a network
        tag = str(item.get("ctx", {})["discriminator"]).strip("'")
        path, value = f"{path}.{tag}", value[tag] if kind == "union_tag_invalid" else None
    if kind in {"missing", "union_tag_not_found"}:
        return Problem(path=path, wrong="is missing")
    if (expected := expectation(item)) is not None:
        return Problem(path=path, wrong=f"expected {expected}", value=value)
    wrong = _sentence(item["msg"])
    # a map is too long to show, and some sentences quote the value
    is_shown = not is_map(value) and not (isinstance(value, str) and repr(value) in wrong)
    return Problem(path=path, wrong=wrong, value=value if is_shown else None)


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return (text[:1].lower() + text[1:_LONGEST]).replace("tuple", "list")


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, date) else value_text(value)
    return text if len(text) <= 60 else text[:57] + "..."
