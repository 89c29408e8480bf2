"""The rule on the cost of a plan."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time
from typing import Any, Final

from gpufleet.domain.money import total
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.prices.plan.preview import UNKNOWN as UNKNOWN_TEXT
from gpufleet.prices.plan.preview import PlannedResource, Preview
from policies.context import Context
from policies.resource import UNKNOWN, Resource
from policies.resource_types import is_excepted
from policies.rule import Rule, Violation

PLAN: Final = "plan"
"""Name of the whole plan where a violation names its resource."""


def _within_budget(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    if context.usd_per_month is None and context.usd_per_hour_at_max is None:
        return
    # these modules import the settings model, which would double the import time of the rules
    from gpufleet.prices.plan.cost import PlanCost, PlanCostError, plan_cost
    from gpufleet.prices.plan.rates import rates_of

    now = datetime.combine(context.today, time(), tzinfo=UTC)

    def cost(some: Sequence[Resource]) -> PlanCost:
        after = tuple(
            PlannedResource(type=r.type, name=r.name, urn=r.urn, inputs=_readable(r.props), depends=r.depends)
            for r in some
        )
        return plan_cost(Preview(config=context.config, before=(), after=after), after, rates_of(context.config, now))

    own: list[Resource] = []
    added: list[Resource] = []
    for resource in resources:
        (added if is_excepted(resource, context) else own).append(resource)
    try:
        costs = [cost(own)]
    except PlanCostError as error:
        for problem in error.problems:
            yield Violation(resource=PLAN, wrong=f"cannot be priced: {problem}")
        return
    for resource in added:
        # a resource that an exception names needs no price
        with suppress(PlanCostError):
            costs.append(cost([resource]))
    most, month = context.usd_per_hour_at_max, context.usd_per_month
    high, of_month = total(c.usd_per_hour_high for c in costs), total(c.usd_per_month for c in costs)
    if most is not None and high > most:
        wrong = f"costs up to {high:.2f} USD/h at its maximum size, and the budget is {most}"
        yield Violation(resource=PLAN, wrong=wrong)
    if month is not None and of_month > month:
        wrong = f"costs {of_month:.2f} USD a month at its desired size, and the budget is {month}"
        yield Violation(resource=PLAN, wrong=wrong)


def _readable(props: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(value) for key, value in props.items()}


def _value(value: Any) -> Any:
    if value is UNKNOWN:
        return UNKNOWN_TEXT
    if is_map(value):
        return _readable(value)
    return [_value(item) for item in value] if is_list(value) else value


RULES: Final = (
    Rule(
        id="within-budget",
        reason="A plan that is refused before `pulumi up` costs nothing.",
        judges="the cost of the whole plan, at its desired and at its maximum size; a resource with an exception of"
        " resource-type-listed needs no price",
        remedy="Lower a pool's max, choose a cheaper machine type, or raise the budget in the settings.",
        check_plan=_within_budget,
    ),
)
