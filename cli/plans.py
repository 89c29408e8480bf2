"""Shows plans and outcomes as tables and as JSON."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Final

from rich.table import Table

from cli.output import STDOUT
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Plan, Reason, SpendRate

_COLOURS = {Action.KEEP: "dim", Action.MARK: "yellow", Action.END: "red", Action.REPLACE: "red", Action.STOP: "red"}


TABLE_FROM: Final = 100
"""Width in columns that a table of decisions needs: names of groups alone take forty."""


def show_plan(plan: Plan, title: str) -> None:
    """One row per decision; two lines each on a narrow terminal."""
    if STDOUT.width < TABLE_FROM:
        _show_narrow(plan, title)
        return
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("resource", "pool", "action", "reason", "detail", "USD/h"):
        table.add_column(column, overflow="fold", no_wrap=column in ("resource", "action"))
    for decision in plan.decisions:
        table.add_row(
            decision.resource,
            decision.pool or "",
            _action(decision),
            decision.reason.sentence,
            decision.detail,
            "" if decision.usd_per_hour is None else f"{decision.usd_per_hour:f}",
            style=_COLOURS.get(decision.action, ""),
        )
    STDOUT.print(table)


def _show_narrow(plan: Plan, title: str) -> None:
    STDOUT.print(title, style="italic", highlight=False, markup=False, soft_wrap=True)
    for decision in plan.decisions:
        usd = "" if decision.usd_per_hour is None else f"{decision.usd_per_hour:f} USD/h"
        what = [_action(decision), decision.resource, f"({decision.pool})" if decision.pool else "", usd]
        why = f"{decision.reason.sentence}: {decision.detail}" if decision.detail else decision.reason.sentence
        for line in (" ".join(word for word in what if word), f"    {why}"):
            style = _COLOURS.get(decision.action, "")
            STDOUT.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def show_outcomes(outcomes: tuple[Outcome, ...]) -> None:
    """Print the outcome of each decision."""
    for outcome in outcomes:
        detail = outcome.error or outcome.detail
        what = f"{outcome.decision.action.sentence} {outcome.decision.resource}: {outcome.kind.sentence}"
        STDOUT.print(
            f"{what} ({detail})" if detail else what,
            style="red" if outcome.kind is OutcomeKind.FAILED else "",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def summary(plan: Plan) -> str:
    """`12 kept, 1 to mark` for the last line."""
    counts = Counter(decision.action for decision in plan.decisions)
    kept = counts.pop(Action.KEEP, 0)
    return ", ".join([f"{kept} kept", *(f"{n} to {action.sentence}" for action, n in sorted(counts.items()))])


def waste(plan: Plan) -> dict[str, Any] | None:
    """Instances whose GPUs are active without requests, and their cost; None if there are none."""
    found = [d for d in plan.decisions if d.reason is Reason.GPU_ACTIVE_WITHOUT_WORK]
    if not found:
        return None
    total, unpriced = total_of(d.usd_per_hour for d in found)
    return {"resources": [d.resource for d in found], "usd_per_hour": f"{total:f}", "unpriced": unpriced}


def total_of(prices: Iterable[Decimal | None]) -> tuple[Decimal, int]:
    """The sum of the known prices, and the number of unknown ones."""
    all_prices = list(prices)
    known = [usd for usd in all_prices if usd is not None]
    return sum(known, Decimal(0)), len(all_prices) - len(known)


def spend_json(spend: SpendRate) -> dict[str, Any]:
    """The fleet's cost after a plan's growth, and the limit at which growth stops."""
    return {
        "usd_per_hour": f"{spend.usd_per_hour:f}",
        "limit_usd_per_hour": f"{spend.limit_usd_per_hour:f}",
        "unpriced": spend.unpriced,
        "unpriced_stops": spend.unpriced_stops,
    }


def plan_json(plan: Plan, outcomes: tuple[Outcome, ...]) -> dict[str, Any]:
    """A plan and its outcomes."""
    return {
        "watchdog": plan.watchdog,
        "at": plan.at.isoformat(),
        "budget": None if plan.budget is None else asdict(plan.budget),
        "spend": None if plan.spend is None else spend_json(plan.spend),
        "waste": waste(plan),
        "decisions": [decision_json(decision) for decision in plan.decisions],
        "outcomes": [
            {
                "resource": outcome.decision.resource,
                "action": outcome.decision.action.value,
                "kind": outcome.kind.sentence,
                "kind_code": outcome.kind.value,
                "detail": outcome.detail,
                "error": outcome.error,
            }
            for outcome in outcomes
        ],
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    """One decision. Money is text, because it is exact."""
    return {
        "resource": decision.resource,
        "pool": decision.pool,
        "action": decision.action.value,
        "reason": decision.reason.sentence,
        "reason_code": decision.reason.value,
        "detail": decision.detail,
        "evidence": dict(decision.evidence),
        "from_size": decision.from_size,
        "to_size": decision.to_size,
        "usd_per_hour": None if decision.usd_per_hour is None else f"{decision.usd_per_hour:f}",
    }


def _action(decision: Decision) -> str:
    if decision.to_size is None:
        return decision.action.sentence
    return f"{decision.action.sentence} {decision.from_size}→{decision.to_size}"
