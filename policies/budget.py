"""The rule on money: what a plan may cost."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, time
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.resource import UNKNOWN, Resource
from policies.rule import Rule, Violation
from prices.plan.preview import UNKNOWN as UNKNOWN_TEXT
from prices.plan.preview import Declared, Preview

PLAN: Final = "plan"
"""Stands for the whole plan where a violation names its resource."""


def _within_budget(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    if context.usd_per_month is None and context.usd_per_hour_at_max is None:
        return
    # these read the settings, whose model would double the time that the rules take to import
    from prices.plan.cost import PlanCostError, plan_cost
    from prices.plan.rates import rates_of

    declared = tuple(
        Declared(type=r.type, name=r.name, urn=r.urn, inputs=_readable(r.props), depends=r.depends) for r in resources
    )
    now = datetime.combine(context.today, time(), tzinfo=UTC)
    try:
        cost = plan_cost(
            Preview(config=context.config, before=(), after=declared), declared, rates_of(context.config, now)
        )
    except PlanCostError as error:
        for problem in error.problems:
            yield Violation(resource=PLAN, wrong=f"cannot be priced: {problem}")
        return
    most, month = context.usd_per_hour_at_max, context.usd_per_month
    if most is not None and cost.usd_per_hour_high > most:
        wrong = f"costs up to {cost.usd_per_hour_high:.2f} USD/h at its highest size, the budget is {most}"
        yield Violation(resource=PLAN, wrong=wrong)
    if month is not None and cost.usd_per_month > month:
        wrong = f"costs {cost.usd_per_month:.2f} USD a month at its desired size, the budget is {month}"
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
        reason="What is refused before `up` costs nothing.",
        remedy="Lower a pool's max, choose a cheaper machine type, or raise the budget in the settings.",
        of_all=_within_budget,
    ),
)
