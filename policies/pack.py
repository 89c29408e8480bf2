"""All rules of the policy pack, and a check of a plan without the engine."""

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from policies import access, budget, capacity, preview, resource_types
from policies.context import Context
from policies.resource import Resource
from policies.rule import Rule, Violation

if TYPE_CHECKING:
    from gpufleet.settings.environment import PolicyException

RULES: Final[tuple[Rule, ...]] = (
    *resource_types.RULES,
    *access.RULES,
    *capacity.RULES,
    *budget.RULES,
    *preview.RULES,
)
RENAMED: Final[Mapping[str, str]] = {"no-wildcard-iam": "iam-in-list"}
"""Rule ids of earlier releases. An exception may not use an old id, because the rule now has different criteria."""


def check(resources: Sequence[Resource], context: Context) -> list[tuple[Rule, Violation]]:
    """Return every violation in a plan, with its rule."""
    return judged(resources, context)[0]


def judged(
    resources: Sequence[Resource], context: Context
) -> "tuple[list[tuple[Rule, Violation]], list[PolicyException]]":
    """Return every violation in a plan, with its rule, and the exceptions that suppress further violations."""
    violations: list[tuple[Rule, Violation]] = []
    used: list[PolicyException] = []
    for rule in RULES:
        found = rule.find(resources, context)
        violations += [(rule, violation) for violation in rule.uncovered(found, context)]
        used += [e for violation in found if (e := rule.exception(violation, context)) is not None]
    return violations, [e for e in context.exceptions if e in used]


def close_to(name: str) -> list[str]:
    """Return the rules that an unknown name may mean, the likeliest first: its current id, similar ids, or all
    ids.
    """
    if (new := RENAMED.get(name)) is not None:
        return [new]
    ids = [rule.id for rule in RULES]
    return difflib.get_close_matches(name, ids, n=3, cutoff=0.4) or ids


def problems_of(context: Context) -> list[str]:
    """Return why these settings do not allow a check of the plan: unreadable parts, and exceptions that use an old
    rule id.
    """
    found = list(context.problems)
    for exception in context.exceptions:
        if (new := RENAMED.get(exception.rule)) is not None:
            named = f"the exception for {exception.resource}: {exception.rule}"
            found.append(f"{named} is now {new}; check whether the exception is still needed")
    return found
