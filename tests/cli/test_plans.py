"""A plan on a narrow terminal and on a wide one."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cli import plans
from cli.output import STDOUT
from gpufleet.domain.decisions import Action, ChangeBudget, Decision, Plan, Reason

GROUP = "chat-reserved-us-east-1a-g6-xlarge-90b28f5"
PLAN = Plan(
    watchdog="spot",
    at=datetime(2026, 11, 21, tzinfo=UTC),
    decisions=(
        Decision(resource=GROUP, pool="chat", action=Action.KEEP, reason=Reason.RESERVED_IN_FULL, detail="1 of 1"),
        Decision(
            resource="chat-on-demand-9e9bf6b",
            pool="chat",
            action=Action.RESIZE,
            reason=Reason.FALLBACK,
            from_size=0,
            to_size=2,
            usd_per_hour=Decimal("-1.6096"),
        ),
    ),
)


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        pytest.param(
            80,
            [
                "local: spot",
                f"keep {GROUP} (chat)",
                "    reserved capacity is paid for: 1 of 1",
                "resize 0→2 chat-on-demand-9e9bf6b (chat) -1.6096 USD/h",
                "    on-demand replaces missing spot",
            ],
            id="narrow",
        ),
        pytest.param(
            140,
            [
                "local: spot",
                "resource pool action reason detail USD/h",
                f"{GROUP} chat keep reserved capacity is paid for 1 of 1",
                "chat-on-demand-9e9bf6b chat resize 0→2 on-demand replaces missing spot -1.6096",
            ],
            id="wide",
        ),
    ],
)
def test_a_plan_keeps_each_word_whole(width: int, lines: list[str]) -> None:
    before = STDOUT.width
    STDOUT.width = width
    try:
        with STDOUT.capture() as captured:
            plans.show_plan(PLAN, "local: spot")
    finally:
        STDOUT.width = before
    assert [" ".join(line.split()) for line in captured.get().splitlines()] == [
        " ".join(line.split()) for line in lines
    ]


def test_the_json_of_a_plan_carries_its_budget() -> None:
    budget = ChangeBudget(per_run=2, per_hour=12, used_this_hour=3)
    assert plans.plan_json(replace(PLAN, budget=budget), ())["budget"] == {
        "per_run": 2,
        "per_hour": 12,
        "used_this_hour": 3,
        "left_today": None,
    }
    assert plans.plan_json(PLAN, ())["budget"] is None


def _spinning(number: int, usd: str | None) -> Decision:
    return Decision(
        resource=f"i-{number}",
        pool="chat",
        action=Action.KEEP,
        reason=Reason.GPU_ACTIVE_WITHOUT_WORK,
        usd_per_hour=None if usd is None else Decimal(usd),
    )


def test_gpus_active_without_requests_are_listed_as_waste() -> None:
    plan = replace(PLAN, decisions=(*PLAN.decisions, _spinning(1, "0.8"), _spinning(2, None), _spinning(3, "0.35")))
    waste = {"resources": ["i-1", "i-2", "i-3"], "usd_per_hour": "1.15", "unpriced": 1}
    assert plans.plan_json(plan, ())["waste"] == waste
    assert plans.plan_json(PLAN, ())["waste"] is None
