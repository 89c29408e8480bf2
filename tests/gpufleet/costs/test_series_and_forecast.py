"""Parts of the digest: anomalies that add up, forecasts, budgets, waste, savings and chart buckets."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.allocation import Charge, LedgerFacts, charges
from gpufleet.costs.anomaly import Hour, anomalies, hour_of, name_cause, split_change
from gpufleet.costs.figures import Figure
from gpufleet.costs.forecast import BudgetState, Forecast, IntervalCost, budget_use, forecast, local_days, month_of
from gpufleet.costs.report import Report, ReportScope, build
from gpufleet.costs.savings import HORIZON, Stop, avoided, savings
from gpufleet.costs.series import buckets, edges, lanes
from gpufleet.costs.waste import WasteCause, total, waste
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.facts import ActivityHour, EndCause, Reservation, Run
from gpufleet.prices.book import PriceBook
from tests.fixtures.costs.overrides import override

T0 = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SPOT, ON_DEMAND, RESERVED = CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED
BOOK = PriceBook(
    region="us-east-1",
    overrides=[
        override(f"aws:ec2:g6.xlarge:{kind}", usd, T0 - timedelta(days=60))
        for kind, usd in (("spot", "0.36"), ("on-demand", "0.72"))
    ],
)


def run(name: str, start: float, end: float | None, kind: CapacityType = ON_DEMAND, **more: object) -> Run:
    """A run from `start` to `end` hours after T0. With `end` None it still runs and was last seen after ten hours."""
    ended = None if end is None else T0 + end * HOUR
    base = Run(
        cloud=Cloud.AWS,
        instance_id=name,
        started_at=T0 + start * HOUR,
        environment="aws/test/us-east-1",
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=kind,
        last_seen_at=ended or T0 + 10 * HOUR,
        pool="chat",
        model="models/chat",
        ended_at=ended,
        end_cause=None if ended is None else EndCause.ENDED,
    )
    return replace(base, **more)  # pyright: ignore[reportArgumentType]


def report(facts: LedgerFacts, hours: float = 10) -> Report:
    scope = ReportScope(
        fleet="f", environment="test", cloud="aws", region="us-east-1", since=T0, until=T0 + hours * HOUR, now=T0
    )
    return build(scope, facts, BOOK, (), None)


FRACTIONS = st.fractions(min_value=0, max_value=10_000, max_denominator=999_983)
HOURS = st.builds(Hour, usd=FRACTIONS, instance_hours=FRACTIONS, tokens=st.integers(0, 10**12))


@given(before=HOURS, after=HOURS)
def test_price_volume_and_efficiency_add_up_to_the_change(before: Hour, after: Hour) -> None:
    assert split_change(before, after).whole == after.usd - before.usd


@given(factor=st.fractions(min_value=Fraction(1, 9), max_value=9))
def test_price_change_alone_is_a_price_effect(factor: Fraction) -> None:
    before = Hour(usd=Fraction(10), instance_hours=Fraction(5), tokens=1_000)
    split = split_change(before, replace(before, usd=before.usd * factor))
    assert (split.price, split.volume, split.efficiency) == (10 * factor - 10, 0, 0)


def test_twice_the_tokens_on_twice_the_instances_is_a_volume_effect() -> None:
    before = Hour(usd=Fraction(10), instance_hours=Fraction(5), tokens=1_000)
    after = Hour(usd=Fraction(20), instance_hours=Fraction(10), tokens=2_000)
    split = split_change(before, after)
    assert (split.price, split.volume, split.efficiency) == (0, 10, 0)


def test_same_tokens_on_twice_the_instances_is_an_efficiency_effect() -> None:
    before = Hour(usd=Fraction(10), instance_hours=Fraction(5), tokens=1_000)
    split = split_change(before, Hour(usd=Fraction(20), instance_hours=Fraction(10), tokens=1_000))
    assert (split.price, split.volume, split.efficiency) == (0, 0, 10)


def hour(usd: float, tokens: int = 1_000_000) -> Hour:
    return Hour(usd=Fraction(usd), instance_hours=Fraction(5), tokens=tokens)


@pytest.mark.parametrize(
    ("now", "weeks", "found"),
    [
        pytest.param(hour(10), [], [], id="nothing to compare with"),
        pytest.param(hour(10), [hour(10), hour(11), hour(9)], [], id="as usual"),
        pytest.param(hour(15), [hour(10)], [], id="at the limit"),
        pytest.param(hour(16), [hour(10)], ["USD/h", "USD per million tokens"], id="more expensive"),
        pytest.param(hour(10, 100), [hour(10)], ["USD per million tokens"], id="fewer tokens for the same cost"),
        pytest.param(hour(10, 0), [hour(10)], [], id="no tokens, no ratio"),
        pytest.param(hour(0.9), [hour(0.1)], [], id="small change"),
        pytest.param(hour(2, 1), [hour(0, 0)], ["USD/h"], id="an increase from zero"),
        pytest.param(hour(0.9), [hour(0, 0)], [], id="a small increase from zero"),
        pytest.param(hour(0, 0), [hour(2)], ["USD/h"], id="a decrease to zero"),
    ],
)
def test_anomaly_differs_strongly_from_the_same_hour_of_other_weeks(
    now: Hour, weeks: list[Hour], found: list[str]
) -> None:
    assert [one.what for one in anomalies(now, weeks, "")] == found


def bill(facts: LedgerFacts, since: float, until: float) -> list[Charge]:
    return list(charges(facts, BOOK, T0 + since * HOUR, T0 + until * HOUR))


def test_fallback_is_named_as_the_cause() -> None:
    facts = LedgerFacts(runs=[run("i-1", 0, 1, SPOT), run("i-2", 1.25, None)])
    cause = name_cause(bill(facts, 0, 1), bill(facts, 1, 2), T0 + HOUR)
    assert cause == "spot fell back to on-demand in us-east-1a (pool chat) since 07:15: +0.54 USD/h"


def test_hour_of_a_figure_is_the_hour_of_its_charges() -> None:
    found = hour_of(report(LedgerFacts(runs=[run("i-1", 0, 2)])).total)
    assert (found.usd, found.instance_hours, found.tokens) == (Fraction("1.44"), 2, 0)


def test_tokens_without_a_known_cost_do_not_change_the_ratio_of_an_hour() -> None:
    figure = Figure(tokens=Tokens(prompt=7, generation=3), without_cost=Tokens(prompt=70, generation=30))
    assert hour_of(figure).tokens == 10


@pytest.mark.parametrize(
    ("moment", "zone", "hours"),
    [
        pytest.param(datetime(2026, 10, 5, tzinfo=UTC), "Europe/Berlin", 31 * 24 + 1, id="an hour that repeats"),
        pytest.param(datetime(2026, 3, 5, tzinfo=UTC), "Europe/Berlin", 31 * 24 - 1, id="an hour that is skipped"),
        pytest.param(datetime(2026, 12, 31, 23, 30, tzinfo=UTC), "UTC", 31 * 24, id="December"),
        pytest.param(
            datetime(2026, 12, 31, 23, 30, tzinfo=UTC), "Europe/Berlin", 31 * 24, id="January in the time zone"
        ),
        pytest.param(datetime(2028, 2, 29, tzinfo=UTC), "UTC", 29 * 24, id="leap year"),
    ],
)
def test_length_of_a_month(moment: datetime, zone: str, hours: int) -> None:
    start, end = month_of(moment, zone)
    assert start <= moment < end
    assert end - start == hours * HOUR


def test_days_of_a_dst_change_have_23_and_25_hours() -> None:
    autumn = local_days(datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 27, tzinfo=UTC), "Europe/Berlin")
    assert [(end - start) / HOUR for start, end in autumn] == [25, 24]
    spring = local_days(datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC), "Europe/Berlin")
    assert [(end - start) / HOUR for start, end in spring] == [23, 24]


def test_forecast_adds_the_remaining_days() -> None:
    found = forecast(Decimal(100), whole_days([Decimal(n) for n in range(1, 12)]), Decimal("2.5"))
    assert found == Forecast(
        spent=Decimal(100), expected=Decimal(115), low=Decimal(105), high=Decimal(125), days_known=Decimal(11)
    )


def whole_days(amounts: list[Decimal]) -> list[IntervalCost]:
    return [IntervalCost(usd, Decimal(1), Decimal(0)) for usd in amounts]


@given(
    spent=st.decimals(0, 10**6, places=2),
    full=st.lists(st.decimals(0, 10**4, places=2), max_size=40),
    left=st.decimals(0, 31, places=4),
)
def test_forecast_is_at_least_the_spend_and_within_its_range(
    spent: Decimal, full: list[Decimal], left: Decimal
) -> None:
    found = forecast(spent, whole_days(full), left)
    assert spent - money.CENT <= found.low <= found.high
    assert min(full[-28:], default=Decimal(0)) * left - money.CENT <= found.expected - spent


@pytest.mark.parametrize(
    ("spent", "expected", "state", "crossed"),
    [
        pytest.param("10", "90", BudgetState.WITHIN, 0, id="well within the budget"),
        pytest.param("50", "90", BudgetState.WARNED, 1, id="half"),
        pytest.param("81", "90", BudgetState.WARNED, 2, id="four fifths"),
        pytest.param("10", "101", BudgetState.WILL_EXCEED, 0, id="will be exceeded"),
        pytest.param("100", "100", BudgetState.WARNED, 3, id="the whole budget"),
        pytest.param("100.01", "120", BudgetState.EXCEEDED, 3, id="exceeded"),
    ],
)
def test_budget_status_levels(spent: str, expected: str, state: BudgetState, crossed: int) -> None:
    month = Forecast(
        spent=Decimal(spent), expected=Decimal(expected), low=Decimal(0), high=Decimal(0), days_known=Decimal(3)
    )
    use = budget_use(Decimal(100), month)
    assert (use.state, len(use.crossed)) == (state, crossed)


def test_budget_of_zero_is_exceeded_by_the_first_cent() -> None:
    month = Forecast(
        spent=Decimal("0.01"), expected=Decimal(1), low=Decimal(1), high=Decimal(1), days_known=Decimal(1)
    )
    assert budget_use(Decimal(0), month).state is BudgetState.EXCEEDED
    assert budget_use(Decimal(0), month).share == 1


SECONDS = st.integers(0, 30_000)


@st.composite
def fleets(draw: st.DrawFn) -> LedgerFacts:
    runs: list[Run] = []
    for number in range(draw(st.integers(0, 4))):
        start = draw(SECONDS) / 3600
        end = draw(st.none() | st.floats(start, start + 3))
        kind = draw(st.sampled_from((CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED)))
        runs.append(run(f"i-{number}", start, end, kind, pool=draw(st.sampled_from(["chat", "code", None]))))
    paid = Reservation(
        cloud=Cloud.AWS,
        reservation="cr-1",
        started_at=T0 + HOUR,
        instances=1,
        environment="e",
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        last_seen_at=T0 + 9 * HOUR,
    )
    slot = draw(st.integers(0, (1 << 360) - 1))
    hours = [
        ActivityHour(environment="e", instance_id="i-0", hour=T0 + n * HOUR, busy=0, idle=slot) for n in range(5)
    ]
    return LedgerFacts(runs=runs, reservations=[paid], activity={"i-0": hours})


@given(facts=fleets(), most=st.integers(1, 30))
def test_chart_buckets_add_up_to_the_report(facts: LedgerFacts, most: int) -> None:
    cuts = edges(T0, T0 + 12 * HOUR, most)
    assert (cuts[0], cuts[-1]) == (T0, T0 + 12 * HOUR)
    assert len(cuts) <= most + 1
    drawn = sum((usd for bucket in buckets(facts, BOOK, cuts) for usd in bucket.usd.values()), Decimal(0))
    # each bucket is rounded to nine decimals
    assert abs(drawn - money.usd(report(facts, 12).total.allocation)) < Decimal("0.000001")


@given(facts=fleets())
def test_waste_is_the_cost_of_capacity_that_served_no_requests(facts: LedgerFacts) -> None:
    found = report(facts)
    assert total(waste(found)) == money.EXACT.subtract(found.total.allocation, found.total.used)


def test_instance_that_ran_seconds_wastes_the_remainder_of_its_minimum_minute() -> None:
    (found,) = waste(report(LedgerFacts(runs=[run("i-1", 0, 15 / 3600)])))
    assert (found.cause, money.usd(found.amount)) == (WasteCause.MINIMUM, Decimal("0.009"))


def test_lanes_show_the_longest_runs_of_a_pool() -> None:
    facts = LedgerFacts(runs=[run(f"i-{n}", 0, n + 1) for n in range(5)])
    (lane,) = lanes(facts, T0, T0 + 3 * HOUR, most=2)
    assert [bar.end - bar.start for bar in lane.bars] == [3 * HOUR, 3 * HOUR]
    assert {bar.end_cause for bar in lane.bars} <= {None, EndCause.ENDED}


def stop(name: str, hours: float) -> Stop:
    return Stop(instance_id=name, pool="chat", at=T0 + hours * HOUR)


@pytest.mark.parametrize(
    ("runs", "stops", "until", "expected"),
    [
        pytest.param([run("a", 0, 1)], [stop("a", 1)], 5, [("2.88", "now")], id="until now"),
        pytest.param([run("a", 0, 1)], [stop("a", 1)], 50, [("17.28", "horizon")], id="until the horizon"),
        pytest.param(
            [run("a", 0, 1), run("b", 2, None)],
            [stop("a", 1)],
            5,
            [("0.72", "the next launch of the pool")],
            id="until the next launch",
        ),
        pytest.param(
            [run("a", 0, 1), run("b", 0, 1), run("c", 2, None)],
            [stop("a", 1), stop("b", 1)],
            3,
            [("0.72", "the next launch of the pool"), ("1.44", "now")],
            id="one launch ends one saving",
        ),
        pytest.param(
            [run("a", 0, 1, RESERVED)],
            [stop("a", 1)],
            5,
            [("0", "prepaid capacity: ending it saved nothing")],
            id="prepaid",
        ),
        pytest.param([run("a", 0, 1, SPOT)], [stop("a", 1)], 2, [("0.36", "now")], id="spot saves its own price"),
        pytest.param([], [stop("a", 1)], 5, [], id="an unknown instance"),
    ],
)
def test_saving_of_a_terminated_idle_instance_lasts_until_the_next_need(
    runs: list[Run], stops: list[Stop], until: float, expected: list[tuple[str, str]]
) -> None:
    found = avoided(stops, runs, BOOK, T0 + until * HOUR)
    saved = [(None if one.amount is None else money.usd(one.amount), one.because) for one in found]
    assert saved == [(Decimal(usd), why) for usd, why in expected]
    assert HORIZON == 24 * HOUR


def test_savings_separate_fallback_from_pools_that_never_had_spot() -> None:
    facts = LedgerFacts(runs=[run("s", 0, 1, SPOT), run("f", 1, 2), run("o", 0, 5, pool="batch")])
    found = savings(report(facts), [], facts.runs, BOOK)
    assert money.usd(found.spot) == Decimal("0.36")
    assert money.usd(found.fallback) == Decimal("0.72")
    assert {pool: money.usd(usd) for pool, usd in found.spot_by_pool.items()} == {"chat": Decimal("0.36")}


@given(bits=st.integers(0, (1 << 360) - 1))
def test_lane_shows_exactly_the_idle_slots(bits: int) -> None:
    quiet = ActivityHour(environment="e", instance_id="i-1", hour=T0, busy=0, idle=bits)
    (lane,) = lanes(LedgerFacts(runs=[run("i-1", 0, 1)], activity={"i-1": [quiet]}), T0, T0 + HOUR)
    drawn = 0
    for start, end in lane.bars[0].idle:
        first, last = int((start - T0).total_seconds()) // 10, int((end - T0).total_seconds()) // 10
        drawn |= ((1 << (last - first)) - 1) << first
    assert drawn == bits


def test_idle_hour_in_a_long_window_is_drawn_whole() -> None:
    hours = [
        ActivityHour(environment="e", instance_id="i-1", hour=T0 + n * HOUR, busy=0, idle=idle)
        for n, idle in enumerate(((1 << 330) - 1, (1 << 360) - 1, 1))
    ]
    (lane,) = lanes(LedgerFacts(runs=[run("i-1", 0, 5)], activity={"i-1": hours}), T0, T0 + 72 * HOUR)
    assert lane.bars[0].idle == [(T0, T0 + 2 * HOUR)]
