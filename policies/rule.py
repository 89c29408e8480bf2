"""Defines rules and violations."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gpufleet.domain.printable import value_text
from gpufleet.domain.secrets import redacted
from policies.context import Context
from policies.resource import UNKNOWN, Resource

if TYPE_CHECKING:
    from gpufleet.settings.environment import PolicyException


class _NotShown:
    """A value that contains a secret."""

    def __repr__(self) -> str:
        return "(not shown)"


NOT_SHOWN: Final = _NotShown()


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyProblem:
    """What is wrong with one property of a resource."""

    path: str = ""
    """The property as the provider's schema names it: `networkInterfaces[0].associatePublicIpAddress`. Empty: the
    error concerns the whole resource.
    """
    value: Any = None
    """The value. None: not set. UNKNOWN: a preview does not know it. NOT_SHOWN: a secret."""
    message: str
    """The error, as a clause that follows the value: `must be false`."""

    def on(self, resource: Resource) -> "Violation":
        """Return the violation for a resource with this error."""
        return Violation(
            resource=resource.name, type=resource.type, path=self.path, value=self.value, wrong=self.message
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """An error in a resource of a plan."""

    resource: str
    """Name of the resource."""
    type: str = ""
    """Type of the resource. Empty for the whole plan."""
    path: str = ""
    """The property. Empty if the error concerns the whole resource."""
    value: Any = None
    wrong: str
    """The error: a clause that follows property and value, or a sentence if `path` is empty."""

    @property
    def sentence(self) -> str:
        """Return a sentence with resource, property, value and error."""
        of_type = f" ({self.type})" if self.type else ""
        return f"{self.resource}{of_type}: {self.path and f'{self.path} is {shown(self.value)}: '}{self.wrong}"


def shown(value: Any) -> str:
    """Return a property's value for messages: shortened and without secrets. A missing or unknown value is described
    as such.
    """
    if value is None:
        return "not set"
    if value is UNKNOWN or value is NOT_SHOWN:
        return repr(value)
    text = redacted(value_text(value))
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


_LONGEST_SHOWN = 120
"""Maximum number of characters of a value in a message. A policy or user data may have thousands."""


OfOne = Callable[[Resource, Context], Iterable[PropertyProblem]]
"""Finds the errors of one resource, each with its property."""
OfAll = Callable[[Sequence[Resource], Context], Iterable[Violation]]
"""Finds the violations of a whole plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. It checks each resource (`check_resource`) or the whole plan (`check_plan`)."""

    id: str
    reason: str
    """Why the rule exists, in one sentence."""
    remedy: str
    judges: str = ""
    """What the rule checks, for the documentation: types and properties."""
    check_resource: OfOne | None = None
    check_plan: OfAll | None = None
    parts: bool = True
    """Whether `check_resource` also checks embedded parts, such as a fleet's launch specifications."""
    named: bool = False
    """Whether an exception must name the type and one resource. An exception for all (`*`) would disable the rule."""

    def check(self, resources: Sequence[Resource], context: Context) -> list[Violation]:
        """Return all violations of this rule, except those that a valid exception covers."""
        return self.uncovered(self.find(resources, context), context)

    def uncovered(self, found: Iterable[Violation], context: Context) -> list[Violation]:
        """Return the violations that no valid exception covers. Each states why a similar exception does not cover
        it.
        """
        return [
            replace(v, wrong=v.wrong + self._not_covered(context, v))
            for v in found
            if self.exception(v, context) is None
        ]

    def find(self, resources: Sequence[Resource], context: Context) -> list[Violation]:
        """Return all violations of this rule, regardless of exceptions."""
        found: list[Violation] = []
        if self.check_resource is not None:
            parts = (part for one in resources for part in (one.parts() if self.parts else (one,)))
            found += [wrong.on(part) for part in parts for wrong in self.check_resource(part, context)]
        if self.check_plan is not None:
            found += self.check_plan(resources, context)
        return found

    def exception(self, violation: Violation, context: Context) -> "PolicyException | None":
        """Return the exception that covers the violation today, or None."""
        return next((e for e in self._exceptions(context, violation) if context.today <= e.until), None)

    def excepts(self, resource: Resource, context: Context) -> bool:
        """Return whether an exception covers every violation of a resource today."""
        return self.exception(PropertyProblem(message="").on(resource), context) is not None

    def message(self, violation: Violation) -> str:
        """Return the message for operators: the error, the rule, why it matters, and the remedy."""
        return f"{violation.sentence}. [{self.id}] {self.reason} {self.remedy} {self._exception_hint(violation)}"

    def _exception_hint(self, violation: Violation) -> str:
        if not self.named:
            return f"Exceptions: `gpufleet policies explain {self.id}`."
        names = f"rule: {self.id}, type: {violation.type}, resource: {violation.resource}"
        return (
            "Or allow it until a day, under policies.exceptions in the settings: "
            f"{{{names}, owner: OWNER, reason: REASON, until: DAY}}."
        )

    def _exceptions(self, context: Context, violation: Violation) -> "list[PolicyException]":
        """Return the exceptions that concern this violation, including expired ones."""
        return [
            e
            for e in context.exceptions
            if e.rule == self.id
            if e.resource == violation.resource or (e.resource == "*" and not self.named)
            if e.type == violation.type or (e.type is None and not self.named)
        ]

    def _not_covered(self, context: Context, violation: Violation) -> str:
        """Return why exceptions that seem to cover the violation do not."""
        if ended := self._exceptions(context, violation):
            return f" (the exception of {ended[-1].owner} ended on {ended[-1].until})"
        for e in context.exceptions if self.named else ():
            if e.rule == self.id and e.resource in ("*", violation.resource):
                of_type = f"of type {e.type}" if e.type else "without a type"
                return f" (the exception of {e.owner} is for resource {e.resource} {of_type})"
        return ""
