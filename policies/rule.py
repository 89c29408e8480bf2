"""What a rule is, and what it finds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policies.context import Context
from policies.resource import UNKNOWN, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What is wrong with one property of a resource."""

    path: str
    """The property as the provider's schema names it: `networkInterfaces[0].associatePublicIpAddress`."""
    value: Any = None
    """What it is: None where nothing was said, UNKNOWN where a preview cannot know."""
    says: str
    """What is wrong with it, a clause that follows the value: `must be false`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What is wrong with a resource of a plan."""

    resource: str
    """Name of the resource."""
    type: str = ""
    """Its type; empty for the plan as a whole."""
    path: str = ""
    """The property; empty where it is the resource as a whole."""
    value: Any = None
    wrong: str
    """What is wrong, a clause that follows property and value, or a sentence where `path` is empty."""

    @property
    def sentence(self) -> str:
        """Resource, property, value and what is wrong with it."""
        of_type = f" ({self.type})" if self.type else ""
        return f"{self.resource}{of_type}: {self.path and f'{self.path} is {shown(self.value)}: '}{self.wrong}"


def shown(value: Any) -> str:
    """A property's value for people: shortened, and said to be missing or unknown where it is."""
    if value is None:
        return "not set"
    if value is UNKNOWN:
        return repr(UNKNOWN)
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


_LONGEST_SHOWN = 120
"""Letters of a value in a message; a policy or user data may have thousands."""


OfOne = Callable[[Resource, Context], Iterable[Wrong | str]]
"""What is wrong with one resource, each with its property."""
OfAll = Callable[[Sequence[Resource], Context], Iterable[Violation]]
"""What is wrong with a whole plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, judged on each resource (`of_one`) or on the whole plan (`of_all`)."""

    id: str
    reason: str
    """Why the rule exists, in one sentence."""
    remedy: str
    of_one: OfOne | None = None
    of_all: OfAll | None = None

    def check(self, resources: Sequence[Resource], context: Context) -> list[Violation]:
        """Everything wrong by this rule, less what a valid exception covers."""
        found: list[Violation] = []
        if self.of_one is not None:
            parts = (part for resource in resources for part in resource.parts())
            found += [v for part in parts for v in _violations(part, self.of_one(part, context))]
        if self.of_all is not None:
            found += self.of_all(resources, context)
        return [
            replace(v, wrong=v.wrong + _ended(context, self.id, v.resource))
            for v in found
            if context.exception(self.id, v.resource) is None
        ]

    def message(self, violation: Violation) -> str:
        """What a person reads: what is wrong, by which rule, why it matters, what to do."""
        return f"{violation.sentence}. [{self.id}] {self.reason} {self.remedy}"


def _violations(resource: Resource, found: Iterable[Wrong | str]) -> Iterator[Violation]:
    for wrong in found:
        if isinstance(wrong, str):
            yield Violation(resource=resource.name, type=resource.type, wrong=wrong)
        else:
            yield Violation(
                resource=resource.name, type=resource.type, path=wrong.path, value=wrong.value, wrong=wrong.says
            )


def _ended(context: Context, rule: str, resource: str) -> str:
    """What people ask first of a violation that was let pass until yesterday."""
    ended = [e for e in context.exceptions if e.rule == rule and e.resource in ("*", resource)]
    return f" (the exception of {ended[-1].owner} ended on {ended[-1].until})" if ended else ""
