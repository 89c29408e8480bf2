"""What a rule is, and what it finds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gpufleet.domain.secrets import redacted
from policies.context import Context
from policies.resource import UNKNOWN, Resource

if TYPE_CHECKING:
    from gpufleet.settings.environment import PolicyException


class _NotShown:
    """A value that holds a secret."""

    def __repr__(self) -> str:
        return "(not shown)"


NOT_SHOWN: Final = _NotShown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What is wrong with one property of a resource."""

    path: str = ""
    """The property as the provider's schema names it: `networkInterfaces[0].associatePublicIpAddress`. Empty: it is
    the resource as a whole."""
    value: Any = None
    """What it is: None where nothing was said, UNKNOWN where a preview cannot know, NOT_SHOWN for a secret."""
    says: str
    """What is wrong with it, a clause that follows the value: `must be false`."""

    def on(self, resource: Resource) -> "Violation":
        """The violation of a resource that has it."""
        return Violation(
            resource=resource.name, type=resource.type, path=self.path, value=self.value, wrong=self.says
        )


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
    """A property's value for people: shortened, without secrets, and said to be missing or unknown where it is."""
    if value is None:
        return "not set"
    if value is UNKNOWN or value is NOT_SHOWN:
        return repr(value)
    text = redacted(repr(value))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


_LONGEST_SHOWN = 120
"""Letters of a value in a message; a policy or user data may have thousands."""


OfOne = Callable[[Resource, Context], Iterable[Wrong]]
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
    judges: str = ""
    """What the rule looks at, for people: types and properties."""
    of_one: OfOne | None = None
    of_all: OfAll | None = None
    parts: bool = True
    """Whether `of_one` also judges what a resource holds of others: a fleet's launch specifications."""
    named: bool = False
    """Whether an exception must name the type, and one resource: for all (`*`) it would switch the rule off."""

    def check(self, resources: Sequence[Resource], context: Context) -> list[Violation]:
        """Everything wrong by this rule, less what a valid exception covers."""
        return self.uncovered(self.find(resources, context), context)

    def uncovered(self, found: Iterable[Violation], context: Context) -> list[Violation]:
        """Those that no valid exception covers, each with why one that people may have meant does not."""
        return [
            replace(v, wrong=v.wrong + self._not_covered(context, v))
            for v in found
            if self.exception(v, context) is None
        ]

    def find(self, resources: Sequence[Resource], context: Context) -> list[Violation]:
        """Everything wrong by this rule, whatever exceptions there are."""
        found: list[Violation] = []
        if self.of_one is not None:
            parts = (part for one in resources for part in (one.parts() if self.parts else (one,)))
            found += [wrong.on(part) for part in parts for wrong in self.of_one(part, context)]
        if self.of_all is not None:
            found += self.of_all(resources, context)
        return found

    def exception(self, violation: Violation, context: Context) -> "PolicyException | None":
        """The exception that lets it pass today, if there is one."""
        return next((e for e in self._exceptions(context, violation) if context.today <= e.until), None)

    def excepts(self, resource: Resource, context: Context) -> bool:
        """Whether an exception lets pass today whatever is wrong with a resource."""
        return self.exception(Wrong(says="").on(resource), context) is not None

    def message(self, violation: Violation) -> str:
        """What a person reads: what is wrong, by which rule, why it matters, what to do."""
        return f"{violation.sentence}. [{self.id}] {self.reason} {self.remedy} {self._way_out(violation)}"

    def _way_out(self, violation: Violation) -> str:
        if not self.named:
            return f"Exceptions: `gpufleet policies explain {self.id}`."
        names = f"rule: {self.id}, type: {violation.type}, resource: {violation.resource}"
        return (
            "Or let it pass for a time, under policies.exceptions of the settings: "
            f"{{{names}, owner: OWNER, reason: REASON, until: DAY}}."
        )

    def _exceptions(self, context: Context, violation: Violation) -> "list[PolicyException]":
        """Those that are about this violation, also ended ones."""
        return [
            e
            for e in context.exceptions
            if e.rule == self.id
            if e.resource == violation.resource or (e.resource == "*" and not self.named)
            if e.type == violation.type or (e.type is None and not self.named)
        ]

    def _not_covered(self, context: Context, violation: Violation) -> str:
        """What people ask first of a violation that they thought was covered."""
        if ended := self._exceptions(context, violation):
            return f" (the exception of {ended[-1].owner} ended on {ended[-1].until})"
        for e in context.exceptions if self.named else ():
            if e.rule == self.id and e.resource in ("*", violation.resource):
                return f" (the exception of {e.owner} is for resource {e.resource} of type {e.type or 'not said'})"
        return ""
