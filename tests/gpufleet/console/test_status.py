"""`gpufleet status`: complete in 80 columns, with unknown values shown as unknown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from app.fleet_view import FIRST_ASKED, with_phases
from gpufleet.console import page
from gpufleet.console.document import document as as_document
from gpufleet.console.text import screen, short_money, short_number
from gpufleet.console.view import AlertView, FleetData, FleetView, build
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance, Phase
from tests.fixtures.console.fleet import LONG_POOL, NOW, busy_read, busy_view, document, instance


def shown(view: FleetView, width: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(screen(view), highlight=False)
    return out.getvalue()


def line_of(text: str, start: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(start))


def test_everything_fits_into_80_columns_and_no_number_is_cut() -> None:
    text = shown(busy_view())
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert line_of(text, "pool") == [
        "pool", "target", "ready", "res", "spot", "o-d", "drain", "mark", "wait", "tok/s", "USD/h", "$/Mtok",
    ]  # fmt: skip
    assert line_of(text, "chat") == [
        "chat", "200", "120", "–", "120/140", "–", "6", "9", "1272", "126k", "11,267", "0.31",
    ]  # fmt: skip
    lines = text.splitlines()
    after = next(n for n, line in enumerate(lines) if line.startswith("chat ")) + 1
    assert "".join(line[:15].strip() for line in lines[after : after + 3]) == LONG_POOL


def test_adapters_of_a_pool_are_listed() -> None:
    read = busy_read()
    first, *others = read.document.pools
    adapters = {"chat:sql": "models/chat-sql", "chat:tax": "models/chat-tax"}
    pools = (first.model_copy(update={"adapters": adapters}), *others)
    view = build(replace(read, document=read.document.model_copy(update={"pools": pools})), lambda _: Decimal(1))
    assert f"adapters of {first.name}: chat:sql, chat:tax" in shown(view)
    assert as_document(view)["pools"][0]["adapters"] == list(adapters)


def test_problems_precede_pools_and_paging_alerts_come_first() -> None:
    ticket, page_ = (AlertView(name=name, severity=severity, pool="chat", instance_id=None, count=1)
                     for name, severity in (("GpuWasted", "ticket"), ("ErrorsHigh", "page")))  # fmt: skip
    view = build(replace(busy_read(), alerts=(ticket,) * 9 + (page_,)), lambda _: Decimal(1))
    text = shown(view)
    places = [text.index(part) for part in ("! costs", "alert ErrorsHigh", "alert GpuWasted", "pool ")]
    assert places == sorted(places)
    html = page.overview([view], NOW, "stamp")
    places = [html.index(part) for part in ("costs of today", "ErrorsHigh", "GpuWasted", "USD per hour", "<h2>Pools")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "text",
    [
        "aws/prod/us-east-1",
        "11,347.68 USD/h, today 1,234.57 USD",
        "! costs of today not known",
        "alert QueueGrowing chat x2 (page)",
        "last hour: 1,234.57 USD; per million tokens 0.123 in, 0.900 out, 0.310 blended",
        "marked: i-00000000000000000 (chat) idle for 7 min; idle: idle",
        "and 5 more like the last",
        "drains: i-00000000000000078 (chat, spot); spot: cheaper elsewhere",
        "orphan: i-0000000000000270f (g6.xlarge, pool –)",
        "brake: pause * by ann@example.com, until resumed: a test [of] brakes",
        "3 min ago spot: resize chat/on-demand: done",
        "idle 5 h ago, spot 33 s ago",
        "spot g6.xlarge in us-east-1a: 0.300 USD/h, 38% of on-demand",
    ],
)
def test_screen_answers_the_questions_of_an_on_call_engineer(text: str) -> None:
    assert text in shown(busy_view(), width=200)


class Agents:
    """Agents, some of which answer."""

    def __init__(self, phases: Mapping[str, Phase]) -> None:
        self._phases = phases
        self.asked: list[str] = []

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, AgentStatus]:
        self.asked += [one.id for one in instances]
        status = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False)
        return {one.id: replace(status, phase=self._phases[one.id]) for one in instances if one.id in self._phases}

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        raise AssertionError("no drain is expected")


def test_without_metrics_agents_are_asked() -> None:
    machines = [instance(number) for number in (1, 2, 3)]
    agents = Agents({machines[0].id: Phase.READY, machines[1].id: Phase.DRAINING})
    signals = with_phases({}, agents, machines)
    read = FleetData(document=document("chat"), at=NOW, instances=machines, signals=signals)
    view = build(read, lambda _: Decimal(1))
    (pool,) = view.pools
    assert (pool.ready, pool.draining, pool.tokens_per_second, pool.waiting) == (1, 1, None, None)
    assert line_of(shown(view), "chat")[-4:] == ["–", "–", "3.00", "–"]


@pytest.mark.parametrize(("answers", "asked"), [(True, 100), (False, FIRST_ASKED)], ids=["reached", "out of reach"])
def test_unreachable_agents_are_not_asked_one_by_one(answers: bool, asked: int) -> None:
    machines = [instance(number) for number in range(100)]
    agents = Agents({one.id: Phase.READY for one in machines if answers})
    assert len(with_phases({}, agents, machines)) == (100 if answers else 0)
    assert len(agents.asked) == asked


def test_control_host_and_routers_are_neither_orphans_nor_without_a_price() -> None:
    control = replace(instance(1, pool=None, role="control"), machine_type="m6i.large")
    astray = replace(instance(3, pool=None), id="i-astray", machine_type="m6i.large")
    prices = {instance(2).id: Decimal(2), astray.id: Decimal(1)}
    read = FleetData(document=document("chat"), at=NOW, instances=[control, instance(2), astray])
    view = build(read, lambda machine: prices.get(machine.id))
    assert [one.id for one in view.instances] == [instance(2).id, "i-astray"]
    assert [one.id for one in view.orphans] == ["i-astray"]
    assert (view.usd_per_hour, view.unpriced) == (Decimal(3), 0)


def test_instance_in_an_unlisted_group_is_an_orphan() -> None:
    stray = replace(instance(2), group="chat-spot-killed")
    view = build(FleetData(document=document("chat"), at=NOW, instances=[instance(1), stray]), lambda _: Decimal(1))
    assert ([one.id for one in view.orphans], view.usd_per_hour) == ([stray.id], Decimal(2))
    (pool,) = view.pools
    assert (pool.types[stray.capacity_type].there, pool.usd_per_hour) == (1, Decimal(1))


def test_missing_is_not_zero() -> None:
    view = build(FleetData(document=document("chat"), at=NOW, instances=None), lambda _: None)
    assert view.usd_per_hour is None
    text = shown(view)
    assert "– USD/h" in text
    assert "alerts: unknown" in text
    assert "no watchdog has recorded anything yet" in text


def test_an_unknown_inventory_is_not_an_empty_pool() -> None:
    read = FleetData(document=document("chat"), at=NOW, instances=None, targets={"chat": 2})
    view = build(read, lambda _: None)
    assert line_of(shown(view), "chat")[-11:] == ["2", *"–" * 10]
    html = page.overview([view, view], NOW, "stamp")
    assert "0.00" not in html
    assert html.count('data-name="pools below target">–') == 2
    found = json.loads(json.dumps(as_document(view)))
    assert [found[name] for name in ("instances", "orphans", "usd_per_hour", "unpriced_instances")] == [None] * 4
    (pool,) = found["pools"]
    unknown = ("ready", "draining", "marked", "usd_per_hour", "unpriced_instances")
    assert [pool[name] for name in unknown] == [None] * len(unknown)
    assert pool["by_capacity_type"]["spot"] == {"ready": None, "there": None, "max": 200}


def test_an_unread_ledger_is_not_a_fleet_without_records() -> None:
    read = FleetData(document=document("chat"), at=NOW, instances=[], ledger_read=False)
    view = build(read, lambda _: None)
    assert "no watchdog has recorded" not in shown(view)
    html = page.overview([view], NOW, "stamp")
    assert "No action in the last hour" not in html
    assert "Unknown: the ledger was not read." in html
    found = as_document(view)
    assert [found[name] for name in ("acts", "brakes", "watchdogs")] == [None] * 3


def test_a_missing_price_makes_a_lower_bound() -> None:
    read = FleetData(document=document("chat"), at=NOW, instances=[instance(1), instance(2)])
    first = instance(1).id
    view = build(read, lambda machine: Decimal(2) if machine.id == first else None)
    assert view.unpriced == 1
    assert "≥2.00 USD/h" in shown(view)


def test_json_has_the_same_numbers_unrounded() -> None:
    view = busy_view()
    found = json.loads(json.dumps(as_document(view)))
    assert found["usd_per_hour"] == "11347.68"
    chat, other = found["pools"]
    assert (chat["model"], chat["engine"]) == ("chat", "vllm")
    assert (chat["target"], chat["ready"], chat["marked"], chat["draining"]) == (200, 120, 9, 6)
    assert chat["by_capacity_type"]["spot"] == {"ready": 120, "there": 140, "max": 200}
    assert chat["usd_per_million_tokens_last_hour"]["blended"] == "0.31"
    assert (other["target"], other["waiting_requests"]) == (None, None)
    assert len(found["instances"]) == 141
    assert found["orphans"] == [instance(9999).id]


def test_unreadable_alerts_are_null_and_no_alerts_are_an_empty_list() -> None:
    read = busy_read()
    price = lambda _: Decimal(1)  # noqa: E731
    assert as_document(build(replace(read, alerts=None), price))["alerts"] is None
    assert as_document(build(replace(read, alerts=[]), price))["alerts"] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (9999, "9999"), (10_000, "10.0k"), (126_000, "126k"), (4_560_000, "4.6M")],
)
def test_short_numbers(value: float | None, text: str) -> None:
    assert short_number(value) == text


def test_short_money_keeps_cents_where_they_matter() -> None:
    assert [short_money(Decimal(x)) for x in ("0.5", "999.99", "1000.4")] == ["0.50", "999.99", "1,000"]
    assert short_money(Decimal(1), unpriced=2) == "≥1.00"
