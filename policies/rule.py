"""What a rule is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from policies.context import Context
from policies.resource import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What is wrong with a resource: the property, its value, in a sentence."""

    resource: str
    """Name of the resource."""
    wrong: str


OfOne = Callable[[Resource, Context], Iterable[str]]
"""What is wrong with one resource, a sentence each."""
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
            found += [Violation(resource=part.name, wrong=w) for part in parts for w in self.of_one(part, context)]
        if self.of_all is not None:
            found += self.of_all(resources, context)
        return [
            replace(v, wrong=v.wrong + _ended(context, self.id, v.resource))
            for v in found
            if context.exception(self.id, v.resource) is None
        ]

    def message(self, violation: Violation) -> str:
        """What a person reads: what is wrong, why it matters, what to do."""
        return f"{violation.resource}: {violation.wrong}. {self.reason} {self.remedy}"


def _ended(context: Context, rule: str, resource: str) -> str:
    """What people ask first of a violation that was let pass until yesterday."""
    ended = [e for e in context.exceptions if e.rule == rule and e.resource in ("*", resource)]
    return f" (the exception of {ended[-1].owner} ended on {ended[-1].until})" if ended else ""
