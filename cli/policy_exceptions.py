"""Checks that each exception in a settings file applies to a rule and has a near end. Expired ones are rejected
before.
"""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from gpufleet.settings import KEY
from gpufleet.settings.environment import PolicyException, Settings
from gpufleet.settings.problems import Problem

if TYPE_CHECKING:
    from policies.rule import Rule

LONGEST: Final = timedelta(days=366)
"""An exception without an end disables its rule. A person reviews and renews it."""


def problems(settings: Settings, today: date) -> Iterator[Problem]:
    """Exceptions of unknown rules, exceptions that name too little for their rule, and exceptions that
    last too long.
    """
    if not settings.policies.exceptions:
        return
    from policies.pack import RULES, close_to  # slow to import, and few settings files have exceptions

    rules = {rule.id: rule for rule in RULES}
    for index, exception in enumerate(settings.policies.exceptions):
        path = f"{KEY}.policies.exceptions.{index}"
        if exception.rule not in rules:
            yield Problem(
                path=f"{path}.rule",
                wrong="is not a rule of the policy pack",
                value=exception.rule,
                remedy=f"name a rule; similar names: {', '.join(close_to(exception.rule))}",
            )
            continue
        yield from _names(path, exception, rules[exception.rule])
        yield from _ends(path, exception, today)


def _names(path: str, exception: PolicyException, rule: "Rule") -> Iterator[Problem]:
    if not rule.named:
        return
    if exception.type is None:
        yield Problem(
            path=f"{path}.type",
            wrong=f"is missing, and rule {rule.id} allows no exception without it",
            remedy="write the type that the rule's message names, for example aws:ec2/instance:Instance",
        )
    if exception.resource == "*":
        yield Problem(
            path=f"{path}.resource",
            wrong=f"is every resource, and rule {rule.id} allows exceptions only for named resources",
            value=exception.resource,
            remedy="write the name that the Pulumi program uses; write one exception for each resource",
        )


def _ends(path: str, exception: PolicyException, today: date) -> Iterator[Problem]:
    if exception.until > today + LONGEST:
        yield Problem(
            path=f"{path}.until",
            wrong="is more than a year from now",
            value=exception.until.isoformat(),
            remedy="write a day within a year, and review the exception then",
        )
