"""The history of costs: its intervals, its sums, and what the page shows of unknown costs."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape
from itertools import pairwise

import pytest

from gpufleet.console import history, history_page
from gpufleet.console.history import CostHistory, Grouping, Period
from gpufleet.console.view import build
from gpufleet.costs.waste import Waste, WasteCause
from gpufleet.domain import money
from gpufleet.domain.brakes import Brake, BrakeKind
from tests.fixtures.console.fleet import NOW, busy_read, busy_view, instance
from tests.fixtures.console.histories import HOUR_S, busy_history, history_of, spend_of


def text_of(found: CostHistory, by: Grouping = Grouping.POOL) -> str:
    """The text of the page, without markup."""
    shown = busy_view()
    return unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", history_page.page([shown], shown, found, by, "stamp")))


@pytest.mark.parametrize(
    ("period", "now", "first", "last"),
    [
        (Period.DAY, "2026-11-21T09:30", "2026-11-20T10:00", "2026-11-21T09:00"),
        (Period.DAY, "2026-11-21T09:00", "2026-11-20T09:00", "2026-11-21T08:00"),
        (Period.WEEK, "2026-11-21T09:30", "2026-11-14T12:00", "2026-11-21T06:00"),
        (Period.MONTH, "2026-11-21T09:30", "2026-10-23T00:00", "2026-11-21T00:00"),
    ],
    ids=["hours", "on the hour", "quarters of a day", "days"],
)
def test_intervals_start_at_whole_steps_and_end_now(period: Period, now: str, first: str, last: str) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    edges = period.edges(moment)
    assert (f"{edges[0]:%Y-%m-%dT%H:%M}", f"{edges[-2]:%Y-%m-%dT%H:%M}", edges[-1]) == (first, last, moment)
    assert {end - start for start, end in pairwise(edges[:-1])} == {period.step}
    assert len(edges) == period.intervals + 1


def test_the_parts_that_are_drawn_have_the_sum_of_all_parts() -> None:
    found = busy_history()
    every = history.series(found, Grouping.POOL)
    drawn = history.drawn(every)
    assert (len(every), len(drawn), drawn[-1].name) == (30, 8, "23 others")
    for number, total in enumerate(history.totals(found)):
        assert money.total(one.amounts[number].dollar_seconds for one in drawn) == total.dollar_seconds


def test_eight_parts_are_drawn_without_others() -> None:
    drawn = history.drawn(history.series(busy_history(pools=8), Grouping.MODEL))
    assert "others" not in " ".join(one.name for one in drawn)


def test_a_cost_that_is_not_known_is_a_gap_and_not_zero() -> None:
    found = history_of({22: spend_of({"chat": "2"}), 23: spend_of({"chat": "3"}, {"batch": "p5 spot"})})
    page = history_page.page([busy_view()], busy_view(), found, Grouping.POOL, "stamp")
    text = " ".join(text_of(found).split())
    assert page.count('class="bars gap"') == 22
    assert "05:00–06:00 UTC: not known" in text
    assert "08:00–09:00 UTC: ≥ 3.00" in text
    assert "no price for p5 spot" in text
    assert "chat 3.00 batch not known" in text, "only the part without a price"


def test_amounts_of_an_interval_add_up_to_the_cent() -> None:
    text = text_of(history_of({23: spend_of({"a": "1.004", "b": "1.004", "c": "1.004"})}))
    assert "08:00–09:00 UTC: 3.01" in text
    assert sorted(re.findall(r"\b[abc] +(\d\.\d\d)", text)[:3]) == ["1.00", "1.00", "1.01"]


def test_small_amounts_are_not_rounded_to_zero() -> None:
    assert "UTC: 0.0037" in text_of(history_of({23: spend_of({"chat": "0.0037"})}))


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (history_of({}, known_until=None), "The ledger has no costs yet: run gpufleet watch cost"),
        (history_of({}), "No costs in this time"),
        (history_of({}), "No action in these 24 hours"),
        (history_of({}), "None is known"),
    ],
    ids=["no pass", "no costs", "no action", "no waste"],
)
def test_an_empty_page_states_what_is_missing(found: CostHistory, shown: str) -> None:
    assert shown in re.sub(r"\s+", " ", text_of(found)).replace(" .", ".")


def test_the_table_has_the_numbers_of_the_picture() -> None:
    found = busy_history()
    page = history_page.page([busy_view()], busy_view(), found, Grouping.TEAM, "stamp")
    picture = re.findall(r"<p><b>([^<]+) UTC: ([^<]+)</b>", page)
    table = re.findall(r'<th scope="row">([^<]+)</th><td>([^<]+)</td>', page)
    assert len(picture) == 24
    assert table == picture[::-1]


def test_names_are_escaped() -> None:
    page = history_page.page(
        [busy_view()], busy_view(), history_of({23: spend_of({"<script>": "2"})}), Grouping.POOL, "s"
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_timeline_names_watchdog_resource_action_code_and_time() -> None:
    text = re.sub(r"\s+", " ", text_of(busy_history()))
    assert f"21 Nov 08:51:00 idle {instance(3).id} end idle" in text


def test_waste_offers_keep_for_running_instances_and_pause_for_pools() -> None:
    page = history_page.page([busy_view()], busy_view(), busy_history(), Grouping.POOL, "stamp")
    assert page.count("Keep 4 h</button>") == 5
    assert "and 3 more instances" in page
    assert page.count("Pause 4 h</button>") == 2, "not of capacity without a pool"


def test_a_brake_that_holds_replaces_its_button() -> None:
    until = NOW + timedelta(hours=1)
    brakes = [
        Brake(kind=BrakeKind.KEEP, scope=instance(0).id, owner="ann", reason="r", until=until, since=NOW),
        Brake(kind=BrakeKind.PAUSE, scope="chat", owner="ann", reason="r", until=None, since=NOW),
    ]
    view = build(replace(busy_read(), brakes=brakes), lambda _: Decimal(1))
    idle = Waste(
        cause=WasteCause.IDLE, pool="chat", amount=HOUR_S, time=timedelta(hours=1),
        resources=(instance(0).id,), advice="end it",
    )  # fmt: skip
    page = history_page.page([view], view, history_of({}, waste=[idle]), Grouping.POOL, "stamp")
    assert "<button aria" not in page
    assert "kept until 21 Nov 10:00 UTC" in page
    assert "pool paused until resumed" in page
