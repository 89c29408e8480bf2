"""The scale watchdog: what raises a target, what lets it fall, and what keeps it; hours; a pass against the ports."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, OutcomeKind, Reason, Target
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import InstanceState
from gpufleet.domain.policies import ScalePolicy, ScheduleRule
from hosts.monitoring import rules
from serving import recorded
from tests.fixtures.watchdogs.plain import READY, START, document, instance, left_booting
from tests.fixtures.watchdogs.scale import BUSY, Store, scaled
from watchdogs.boots import DEFAULT_BOOT
from watchdogs.policy import digests
from watchdogs.ports import LEASE_OVER
from watchdogs.scale import pressure
from watchdogs.scale.decide import decide
from watchdogs.scale.hours import holds
from watchdogs.scale.pressure import Readings, past_query
from watchdogs.scale.view import Demand, Pressure, ScalePoolView
from watchdogs.scale.watchdog import ScaleWatchdog

IDLE = Pressure(reporting=4, kv_cache=0.1, kv_cache_peak=0.1)
LAST: Mapping[str, Any] = {"target": 1, "min": 0, "ready": 1, "pressure": replace(IDLE, reporting=1)}
NIGHTS = ScheduleRule(days=("fri",), start="22:00", end="06:00", target=3, timezone="Europe/Berlin")


def pool(**changes: Any) -> ScalePoolView:
    plain = ScalePoolView(name="batch", policy=ScalePolicy(), target=4, min=1, max=8, ready=4, pressure=IDLE)
    return replace(plain, **changes)


def judged(view: ScalePoolView, now: datetime = START) -> tuple[Action, Reason, int | None]:
    (decision,) = decide([view], now).decisions
    return decision.action, decision.reason, decision.to_size


@pytest.mark.parametrize(
    ("changes", "reason", "to"),
    [
        pytest.param({"pressure": replace(IDLE, waiting=17.0)}, Reason.LOAD_HIGH, 5, id="a queue"),
        pytest.param(
            {"max": 20, "pressure": replace(IDLE, waiting=900.0)}, Reason.LOAD_HIGH, 8, id="a long queue doubles"
        ),
        pytest.param(
            {"pressure": replace(IDLE, waiting=900.0, backlog_s=700.0)}, Reason.LOAD_HIGH, 6, id="a queue as work"
        ),
        pytest.param(
            {"pressure": replace(IDLE, waiting=900.0, backlog_s=700.0), "demand": Demand(now=6.0, peak=6.0)},
            Reason.LOAD_HIGH, 8, id="a queue on top of the work that comes",
        ),
        pytest.param(
            {"pressure": replace(IDLE, waiting=900.0, backlog_s=100.0), "cold_start": timedelta(seconds=6)},
            Reason.LOAD_HIGH, 6, id="a queue of a pool that starts at once: within a minute",
        ),
        pytest.param({"pressure": replace(IDLE, kv_cache=0.99)}, Reason.LOAD_HIGH, 5, id="the KV cache"),
        pytest.param({"demand": Demand(now=4.0, peak=4.0)}, Reason.LOAD_HIGH, 5, id="work, with half of its root"),
        pytest.param({"demand": Demand(now=1.0, peak=4.5)}, Reason.LOAD_HIGH, 6, id="work that has just passed"),
        pytest.param(
            {"max": 90, "demand": Demand(now=40.0, peak=40.0)}, Reason.LOAD_HIGH, 44, id="much work: headroom is more"
        ),
        pytest.param(
            {"demand": Demand(now=4.0, peak=4.0), "policy": ScalePolicy(headroom=0.6)}, Reason.LOAD_HIGH, 7,
            id="a policy's own headroom",
        ),
        pytest.param({"demand": Demand(now=90.0, peak=90.0)}, Reason.LOAD_HIGH, 8, id="not above max"),
        pytest.param(
            {"policy": ScalePolicy(first_token_s=1.0), "pressure": replace(IDLE, first_token_s=1.4)},
            Reason.OBJECTIVE_MISSED, 6, id="first token late",
        ),
        pytest.param(
            {"policy": ScalePolicy(inter_token_s=0.05), "pressure": replace(IDLE, inter_token_s=5.0)},
            Reason.OBJECTIVE_MISSED, 8, id="next token far too late: doubled at most",
        ),
        pytest.param(
            {"target": 0, "min": 0, "ready": 0, "pressure": None, "held_requests": 3.0}, Reason.HELD_REQUESTS, 1,
            id="held requests wake it",
        ),
        pytest.param(
            {"policy": ScalePolicy(schedule=(replace(NIGHTS, target=6, start="00:00", end="00:00", days=("sat",)),))},
            Reason.SCHEDULE, 6, id="the hour",
        ),
    ],
)  # fmt: skip
def test_which_load_raises_a_target(changes: Mapping[str, Any], reason: Reason, to: int) -> None:
    assert judged(pool(**changes)) == (Action.RETARGET, reason, to)


@pytest.mark.parametrize(
    ("limits", "to"), [({"min": 5}, 5), ({"max": 3}, 3)], ids=["below the pool's min", "above the pool's max"]
)
def test_a_held_target_stays_within_the_pools_limits(limits: Mapping[str, int], to: int) -> None:
    action, _, size = judged(pool(target=4, target_held_by="target held by ops", **limits))
    assert (action, size) == (Action.RETARGET, to)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"paused_by": "by ops"}, Reason.PAUSED, id="paused"),
        pytest.param({"target_held_by": "target held by ops"}, Reason.KEPT_BY_PEOPLE, id="held by a person"),
        pytest.param(
            {"target_held_by": "target held by ops", "demand": Demand(now=40.0, peak=40.0)}, Reason.KEPT_BY_PEOPLE,
            id="held by a person, though more is needed",
        ),
        pytest.param({"pressure": None}, Reason.METRICS_MISSING, id="no metrics"),
        pytest.param({"pressure": replace(IDLE, reporting=3)}, Reason.METRICS_MISSING, id="one replica is silent"),
        pytest.param({"without_metrics": 1}, Reason.METRICS_MISSING, id="a ready replica without metrics"),
        pytest.param({"pressure": replace(IDLE, coverage=0.8)}, Reason.METRICS_MISSING, id="a young store"),
        pytest.param({"pressure": Pressure(reporting=4)}, Reason.METRICS_MISSING, id="no measure of load"),
        pytest.param(
            {"policy": ScalePolicy(requests_per_replica=10)}, Reason.METRICS_MISSING, id="requests not reported"
        ),
        pytest.param(
            {"policy": ScalePolicy(tokens_per_second_per_replica=900)}, Reason.METRICS_MISSING, id="nor tokens"
        ),
        pytest.param(
            {"policy": ScalePolicy(first_token_s=1.0), "pressure": replace(IDLE, running_peak=2.0)},
            Reason.METRICS_MISSING, id="first token not reported",
        ),
        pytest.param(
            {"policy": ScalePolicy(inter_token_s=0.1), "pressure": replace(IDLE, running_peak=2.0)},
            Reason.METRICS_MISSING, id="next token not reported",
        ),
        pytest.param({"pressure": replace(IDLE, waiting_peak=1.0)}, Reason.LOAD_NEEDS_ALL, id="a request waited"),
        pytest.param(
            {"pressure": replace(IDLE, running_peak=42.0, full=14.0)}, Reason.LOAD_NEEDS_ALL,
            id="as many as queued lately, with headroom",
        ),
        pytest.param({"pressure": replace(IDLE, kv_cache_peak=0.7)}, Reason.LOAD_NEEDS_ALL, id="N/(N-1): KV cache"),
        pytest.param({"demand": Demand(now=0.1, peak=2.9)}, Reason.LOAD_NEEDS_ALL, id="work within the window"),
        pytest.param(
            {"policy": ScalePolicy(first_token_s=1.0), "pressure": replace(IDLE, first_token_peak_s=0.8)},
            Reason.LOAD_NEEDS_ALL, id="N/(N-1): first token",
        ),
        pytest.param({"policy_seen": False}, Reason.POLICY_UNSEEN, id="policy unseen"),
        pytest.param({"min": 4}, Reason.AS_WANTED, id="at its min"),
        pytest.param(
            {
                "min": 4,
                "policy": ScalePolicy(
                    schedule=(replace(NIGHTS, target=1, start="00:00", end="00:00", days=("sat",)),)
                ),
            },
            Reason.AS_WANTED, id="at its min, though the hour asks for less",
        ),
        pytest.param({"ready": 0, "pressure": None}, Reason.LOADING, id="still booting"),
        pytest.param(
            {"ready": 0, "pressure": None, "held_requests": 3.0}, Reason.LOADING, id="still booting, and asked for"
        ),
        pytest.param(
            {"target": 1, "min": 0, "ready": 1, "pressure": replace(IDLE, reporting=1, running_peak=1.0)},
            Reason.LOAD_NEEDS_ALL, id="the last one served within the window",
        ),
        pytest.param(
            LAST | {"pressure": replace(IDLE, reporting=1, waiting_peak=1.0), "demand": Demand(now=0.0, peak=0.0)},
            Reason.LOAD_NEEDS_ALL, id="a request waited for the last one within the window",
        ),
        pytest.param(LAST | {"held_requests": 3.0}, Reason.HELD_REQUESTS, id="just ready, and requests are held"),
        pytest.param(
            LAST | {"held_requests_peak": 3.0}, Reason.LOAD_NEEDS_ALL, id="requests were held within the window"
        ),
        pytest.param(
            LAST | {"pressure": replace(IDLE, reporting=1, tokens_peak=0.2)}, Reason.LOAD_NEEDS_ALL,
            id="answers shorter than a scrape",
        ),
        pytest.param(LAST | {"demand": Demand(now=0.0, peak=0.3)}, Reason.LOAD_NEEDS_ALL, id="work in the window"),
    ],
)  # fmt: skip
def test_which_conditions_keep_a_target(changes: Mapping[str, Any], reason: Reason) -> None:
    action, why, _ = judged(pool(**changes))
    assert (action, why) == (Action.KEEP, reason)


@pytest.mark.parametrize(
    ("changes", "to"),
    [
        pytest.param({}, 3, id="one at a time"),
        pytest.param({"max": 4}, 3, id="from its max"),
        pytest.param({"ready": 0}, 3, id="none is in service, and the engines report no requests"),
        pytest.param({"pressure": replace(IDLE, coverage=0.9)}, 3, id="most of the window is seen"),
        pytest.param({"policy": ScalePolicy(first_token_s=1.0)}, 3, id="no traffic, no latency"),
        pytest.param(
            {
                "policy": ScalePolicy(first_token_s=1.0),
                "pressure": replace(IDLE, first_token_s=1.0, first_token_peak_s=0.5),
            },
            3,
            id="latency within its objective",
        ),
        pytest.param(
            {"pressure": replace(IDLE, running_peak=2.0, first_token_s=9.0, first_token_peak_s=9.0)},
            3,
            id="latency without an objective",
        ),
        pytest.param(
            {"pressure": replace(IDLE, waiting_peak=1.0), "demand": Demand(now=0.1, peak=2.2)},
            3,
            id="a request waited, and the policy states the capacity of a replica",
        ),
        pytest.param(
            {"policy": ScalePolicy(tokens_per_second_per_replica=900), "demand": Demand(now=0.1, peak=2.2)},
            3,
            id="work in tokens",
        ),
        pytest.param(
            {"pressure": Pressure(reporting=4), "demand": Demand(now=0.1, peak=2.2)}, 3, id="work, without a KV cache"
        ),
        pytest.param(
            {"target": 40, "ready": 40, "max": 50, "pressure": replace(IDLE, reporting=40)}, 36, id="a tenth"
        ),
        pytest.param(
            {
                "target": 40,
                "ready": 40,
                "max": 50,
                "pressure": replace(IDLE, reporting=40),
                "demand": Demand(now=1.0, peak=30.0),
            },
            33,
            id="as far as the highest load needs, if the policy states the capacity of a replica",
        ),
        pytest.param(
            {"target": 40, "ready": 40, "min": 38, "max": 50, "pressure": replace(IDLE, reporting=40)},
            38,
            id="no further than its min",
        ),
        pytest.param(
            {"pressure": replace(IDLE, waiting=16.0, waiting_peak=16.0), "demand": Demand(now=0.1, peak=2.2)},
            3,
            id="as many wait as may",
        ),
        pytest.param(
            {
                "pressure": replace(IDLE, waiting=16.0, waiting_peak=16.0, backlog_s=3000.0),
                "demand": Demand(now=0.1, peak=2.2),
            },
            3,
            id="as many wait as may, however much work they are",
        ),
        pytest.param({"pressure": replace(IDLE, running_peak=42.0, full=16.0)}, 3, id="fewer than queued lately"),
        pytest.param(
            {"pressure": replace(IDLE, running_peak=42.0, full=10.0), "demand": Demand(now=0.1, peak=2.2)},
            3,
            id="the policy states the capacity of a replica",
        ),
        pytest.param({"demand": Demand(now=0.1, peak=2.2)}, 3, id="the highest load fits"),
        pytest.param(LAST, 0, id="the last one, idle"),
        pytest.param(
            LAST | {"demand": Demand(now=0.0, peak=0.0), "policy": ScalePolicy(headroom=9.0)},
            0,
            id="the last one, without work: no spare for none",
        ),
    ],
)
def test_which_load_lowers_a_target(changes: Mapping[str, Any], to: int) -> None:
    assert judged(pool(**changes)) == (Action.RETARGET, Reason.LOAD_LOW, to)


@pytest.mark.parametrize(
    ("changes", "judgement"),
    [
        pytest.param({}, (Action.KEEP, Reason.POLICY_UNSEEN, None), id="down"),
        pytest.param({"target": 9, "max": 8}, (Action.KEEP, Reason.POLICY_UNSEEN, None), id="down to the max"),
        pytest.param(
            {"pressure": replace(IDLE, waiting=17.0)}, (Action.RETARGET, Reason.LOAD_HIGH, 5), id="up by load"
        ),
        pytest.param(
            {"target": 0, "min": 0, "ready": 0, "pressure": None, "held_requests": 5.0},
            (Action.RETARGET, Reason.HELD_REQUESTS, 1), id="awake",
        ),
    ],
)  # fmt: skip
def test_an_unseen_policy_ends_nothing(
    changes: Mapping[str, Any], judgement: tuple[Action, Reason, int | None]
) -> None:
    assert judged(pool(policy_seen=False, **changes)) == judgement


def test_a_target_above_max_comes_down_to_it() -> None:
    assert judged(pool(target=9, max=8)) == (Action.RETARGET, Reason.SURPLUS, 8)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        pytest.param(
            {"demand": Demand(now=90.0, peak=90.0)},
            "work for 90.00 replicas, up to 90.00 within 60 min, 99.00 with a spare; "
            "99 are needed, 8 is the pool's max",
            id="more than its max",
        ),
        pytest.param(
            {"demand": Demand(now=5.0, peak=6.25)},
            "work for 5.00 replicas, up to 6.25 within 60 min, 7.50 with a spare",
            id="its max",
        ),
        pytest.param(
            {"target": 0, "min": 0, "ready": 0, "pressure": None, "held_requests": 3.0},
            "3 wait for a first replica; a cold start takes about 6 min",
            id="held requests",
        ),
        pytest.param(
            {"target": 0, "min": 0, "ready": 1, "pressure": None, "held_requests": 3.0},
            "3 wait for a first replica; a replica is ready",
            id="held requests, a replica is there",
        ),
    ],
)
def test_a_higher_target_states_its_reason(changes: Mapping[str, Any], detail: str) -> None:
    assert decide([pool(**changes)], START).decisions[0].detail == detail


def test_evidence_has_the_reported_numbers() -> None:
    view = pool(pressure=None, demand=Demand(now=2.12345678, peak=3.5))
    assert decide([view], START).decisions[0].evidence == {
        "target": "4", "ready": "4", "held": "0", "held_peak": "0", "demand.now": "2.12346", "demand.peak": "3.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("moment", "held"),
    [
        # Europe/Berlin is UTC+1 in winter, UTC+2 in summer
        pytest.param("2026-11-20T20:59Z", False, id="before"),
        pytest.param("2026-11-20T21:00Z", True, id="start belongs to it"),
        pytest.param("2026-11-21T04:59Z", True, id="into the next day"),
        pytest.param("2026-11-21T05:00Z", False, id="end does not"),
        pytest.param("2026-11-20T02:00Z", False, id="the night before is Thursday's"),
        pytest.param("2026-07-10T20:00Z", True, id="summer"),
        pytest.param("2026-07-10T19:59Z", False, id="summer, before"),
        pytest.param("2026-12-25T22:00Z", False, id="a holiday"),
        pytest.param("2026-12-26T02:00Z", False, id="the night after a holiday"),
    ],
)
def test_schedule_hours_may_span_midnight(moment: str, held: bool) -> None:
    rule = replace(NIGHTS, except_on=(date(2026, 12, 25),))
    assert holds(rule, datetime.fromisoformat(moment)) is held


FORWARD, BACK, PLAIN = "forward", "back", "plain"
NIGHT_BEFORE = {
    # noon of the Saturday in UTC is before the night and after the day's hours in all of these
    ("Europe/Berlin", FORWARD): datetime(2026, 3, 28, 12, tzinfo=UTC),
    ("Europe/Berlin", BACK): datetime(2026, 10, 24, 12, tzinfo=UTC),
    ("Europe/Berlin", PLAIN): datetime(2026, 6, 6, 12, tzinfo=UTC),
    ("America/New_York", FORWARD): datetime(2026, 3, 7, 12, tzinfo=UTC),
    ("America/New_York", BACK): datetime(2026, 10, 31, 12, tzinfo=UTC),
    ("America/New_York", PLAIN): datetime(2026, 6, 6, 12, tzinfo=UTC),
    # half an hour, and on the other half of the globe
    ("Australia/Lord_Howe", FORWARD): datetime(2026, 10, 3, 12, tzinfo=UTC),
    ("Australia/Lord_Howe", BACK): datetime(2026, 4, 4, 12, tzinfo=UTC),
    ("Australia/Lord_Howe", PLAIN): datetime(2026, 6, 6, 12, tzinfo=UTC),
}


@pytest.mark.parametrize(
    ("days", "start", "end", "wall_minutes"),
    [(("sun",), "01:00", "05:00", 240), (("sat",), "23:30", "06:00", 390), (("sun",), "03:00", "05:00", 120)],
    ids=["around the change", "over midnight", "after the change"],
)
@pytest.mark.parametrize(("timezone", "clocks"), NIGHT_BEFORE, ids=lambda value: value)
def test_schedule_hours_when_clocks_change(
    timezone: str, clocks: str, days: tuple[str, ...], start: str, end: str, wall_minutes: int
) -> None:
    """The repeated hour counts twice, the skipped one not at all, wherever the clocks change by how much."""
    rule = ScheduleRule(days=days, start=start, end=end, target=1, timezone=timezone)
    step = 30 if timezone == "Australia/Lord_Howe" else 60
    changed = {FORWARD: -step, BACK: step, PLAIN: 0}[clocks] if start != "03:00" else 0
    night = NIGHT_BEFORE[timezone, clocks]
    assert sum(holds(rule, night + timedelta(minutes=n)) for n in range(24 * 60)) == wall_minutes + changed


@pytest.mark.parametrize(
    ("moment", "held"),
    [
        pytest.param("2026-10-03T15:14Z", True, id="before the skipped half hour"),
        pytest.param("2026-10-03T15:29Z", True, id="its last minute"),
        pytest.param("2026-10-03T15:30Z", False, id="half past two comes at once: the end was skipped"),
    ],
)
def test_schedule_ends_in_a_skipped_half_hour(moment: str, held: bool) -> None:
    rule = ScheduleRule(days=("sun",), start="01:00", end="02:15", target=1, timezone="Australia/Lord_Howe")
    assert holds(rule, datetime.fromisoformat(moment)) is held


def test_a_start_in_a_skipped_hour_is_when_the_clocks_have_skipped_it() -> None:
    rule = ScheduleRule(days=("sun",), start="02:30", end="05:00", target=1, timezone="Europe/Berlin")
    around = (datetime(2026, 3, 29, 0, 59, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, tzinfo=UTC))
    assert [holds(rule, moment) for moment in around] == [False, True]


QUIET = {
    "reporting": 2.0,
    "waiting": 0.0,
    "waiting_peak": 0.0,
    "running_peak": 0.0,
    "requests": 0.0,
    "requests_peak": 0.0,
}


def test_policy_that_lowers_a_target_waits_for_a_dry_run() -> None:
    fake, watchdog, fleet = scaled(QUIET)
    first = watchdog.apply()
    assert [d.reason for d in first.plan.decisions] == [Reason.POLICY_UNSEEN]
    assert [d.to_size for d in watchdog.dry().plan.decisions] == [0]
    assert ("scale", "batch", digests(fleet, "scale")["batch"]) in fake.seen
    assert [o.detail for o in watchdog.apply().outcomes] == ["target 2 → 0"]


def test_a_dry_run_shows_what_apply_then_does() -> None:
    fake, watchdog, _ = scaled(BUSY)
    assert [d.to_size for d in watchdog.dry().plan.decisions] == [4]
    done = watchdog.apply()
    assert [(o.kind, o.detail) for o in done.outcomes] == [(OutcomeKind.DONE, "target 2 → 4")]
    assert fake.targets["batch"].value == 4
    assert done.observed[0].demand == Demand(now=3.1, peak=3.1)
    assert done.observed[0].cold_start == timedelta(minutes=4)
    assert done.plan.decisions[0].usd_per_hour is not None
    assert done.plan.decisions[0].usd_per_hour < Decimal(0)


@pytest.mark.parametrize(
    ("policy", "unit"),
    [
        pytest.param(ScalePolicy(requests_per_replica=25), "requests", id="requests"),
        pytest.param(ScalePolicy(tokens_per_second_per_replica=25), "tokens", id="tokens"),
    ],
)
def test_demand_is_the_same_in_requests_and_tokens(policy: ScalePolicy, unit: str) -> None:
    present = {unit: 250.0, f"{unit}_peak": 400.0}
    readings = Readings(present={"chat": present}, past={}, policies={"chat": policy}, engines={})
    assert readings.demand("chat") == Demand(now=10.0, peak=16.0)


@pytest.mark.parametrize(
    ("present", "demand"),
    [
        pytest.param({"requests": 30.0}, None, id="its peak is not reported"),
        pytest.param({"requests_peak": 30.0}, None, id="the current load is not reported"),
        pytest.param({"requests": 30.0, "requests_peak": 20.0}, Demand(now=3.0, peak=3.0), id="now is the peak"),
        pytest.param({"requests": 20.0, "requests_peak": 30.0}, Demand(now=2.0, peak=3.0), id="the peak has passed"),
    ],
)
def test_work_is_known_where_now_and_its_peak_are(present: Mapping[str, float], demand: Demand | None) -> None:
    policies = {"chat": ScalePolicy(requests_per_replica=10)}
    readings = Readings(present={"chat": present}, past={}, policies=policies, engines={})
    assert readings.demand("chat") == demand


def test_pools_are_looked_at_over_the_longest_of_their_windows() -> None:
    fake, _, _ = scaled(BUSY)
    asked: list[str] = []
    spans = {"a": timedelta(minutes=5), "b": timedelta(minutes=20)}
    policies = {name: ScalePolicy(down_after=span) for name, span in spans.items()}

    class Asked(Store):
        def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
            asked.append(expression)
            return super().query(expression, at)

    pressure.read(Asked(fake, BUSY), "test", policies, START)
    assert asked[0] == pressure.present_query("test", timedelta(minutes=20))


def test_each_pool_has_its_own_cold_start() -> None:
    fake, _, fleet = scaled(BUSY)
    (batch,) = fleet.pools
    others = [
        batch.model_copy(update={"name": name, "groups": [group.model_copy(update={"name": f"{name}-a"})]})
        for name in ("slow", "new")
        for group in batch.groups[:1]
    ]
    slow = instance(3, pool="slow", group="slow-a")
    fake.instances[slow.id] = slow
    fake.agents[slow.id] = replace(READY, phase_since=slow.launched_at + timedelta(minutes=12))
    fleet = fleet.model_copy(update={"pools": [batch, *others]})
    ports = replace(fake.ports(), metrics=Store(fake, BUSY))
    seen = {view.name: view.cold_start for view in ScaleWatchdog(fleet, ports).dry().observed}
    assert seen == {
        "batch": timedelta(minutes=4),
        "slow": timedelta(minutes=12),
        "new": timedelta(minutes=4),  # nobody knows: the median of all
    }


@pytest.mark.parametrize(
    ("ready_after", "start"),
    [
        pytest.param((4, 27 * 60), timedelta(minutes=4), id="one is ready again"),
        pytest.param((26 * 60, 27 * 60), DEFAULT_BOOT, id="all are: no boot was measured"),
        pytest.param((4, 60), timedelta(minutes=32), id="a slow start"),
    ],
)
def test_a_replica_that_is_ready_again_has_no_boot_duration(ready_after: tuple[int, int], start: timedelta) -> None:
    """A model is replaced, or an agent starts again, a day after the launch."""
    fake, watchdog, _ = scaled(BUSY)
    for (key, one), minutes in zip(fake.instances.items(), ready_after, strict=True):
        fake.agents[key] = replace(READY, phase_since=one.launched_at + timedelta(minutes=minutes))
    assert [view.cold_start for view in watchdog.dry().observed] == [start]


@pytest.mark.parametrize(
    ("objectives", "asked"),
    [
        pytest.param({"first_token_s": 1.0}, True, id="the first token's"),
        pytest.param({"inter_token_s": 0.1}, True, id="the next token's"),
        pytest.param({"first_token_s": 1.0, "inter_token_s": 0.1}, True, id="both"),
        pytest.param({}, False, id="none"),
    ],
)
def test_slow_times_are_queried_only_for_pools_with_an_objective(objectives: Mapping[str, Any], asked: bool) -> None:
    query = past_query("test", {"a": ScalePolicy(**objectives)})
    assert ('"slow"' in query) is asked


def test_unfinished_retarget_of_a_removed_pool_is_cancelled() -> None:
    fake, watchdog, _ = scaled(BUSY)
    watchdog.dry()
    fake.kill_at("set_target", watchdog.apply)
    fake.targets.clear()
    done = ScaleWatchdog(document(watchdogs={}), watchdog._ports).apply()  # pyright: ignore[reportPrivateUsage]
    assert [outcome.kind for outcome in done.outcomes] == [OutcomeKind.NO_LONGER_TRUE]
    assert not fake.intents


def test_a_target_changed_by_another_process_is_not_overwritten() -> None:
    fake, watchdog, _ = scaled(BUSY)
    watchdog.dry()

    def another_process(name: str) -> None:
        if name == "set_target":
            fake.targets["batch"] = Target(pool="batch", value=6, version=8)

    fake.before = another_process
    assert [o.kind for o in watchdog.apply().outcomes] == [OutcomeKind.NO_LONGER_TRUE]
    assert fake.targets["batch"].value == 6


def test_a_pause_that_comes_in_between_is_honoured() -> None:
    fake, watchdog, _ = scaled(BUSY)
    watchdog.dry()
    brake = Brake(since=START, kind=BrakeKind.PAUSE, scope="batch", owner="ops", reason="load test", until=None)
    asked = 0

    def later(name: str) -> None:
        nonlocal asked
        asked += name == "brakes"
        if asked == 2:
            fake.brakes = [brake]

    fake.before = later
    assert [o.kind for o in watchdog.apply().outcomes] == [OutcomeKind.NO_LONGER_TRUE]
    assert fake.targets["batch"].value == 2


@pytest.mark.parametrize(
    ("brake", "to"),
    [
        pytest.param(
            Brake(since=START, kind=BrakeKind.PAUSE, scope="batch", owner="ops", reason="test", until=START),
            4,
            id="over",
        ),
        pytest.param(
            Brake(since=START, kind=BrakeKind.TARGET, scope="batch", owner="ops", reason="test", until=None),
            2,
            id="target",
        ),
        pytest.param(
            Brake(since=START, kind=BrakeKind.PAUSE, scope="other", owner="ops", reason="test", until=None),
            4,
            id="other's",
        ),
    ],
)
def test_a_brake_holds_its_pool_until_its_end(brake: Brake, to: int) -> None:
    fake, watchdog, _ = scaled(BUSY)
    watchdog.dry()
    fake.brakes = [brake]
    watchdog.apply()
    assert fake.targets["batch"].value == to


def test_a_pass_without_the_lease_writes_no_target() -> None:
    fake, watchdog, _ = scaled(BUSY)
    fake.lease_is_ours = False
    assert [(o.kind, o.detail) for o in watchdog.apply().outcomes] == [(OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)]
    assert fake.targets["batch"].value == 2


@pytest.mark.parametrize(
    ("stats", "messages"),
    [
        pytest.param(
            {"held": 3.0},
            {
                "scale:wake:batch:8": "Pool batch scales up from zero: 3 wait for a first replica; "
                "a cold start takes about 6 min."
            },
            id="held requests wake it",
        ),
        pytest.param({}, {}, id="no request waits"),
        pytest.param(BUSY, {}, id="work raises it"),
    ],
)
def test_a_pool_that_scales_up_from_zero_notifies(stats: Mapping[str, float], messages: Mapping[str, str]) -> None:
    fake, watchdog, _ = scaled(stats)
    fake.instances, fake.targets = {}, {"batch": Target(pool="batch", value=0, version=7)}
    watchdog.apply()
    assert fake.messages == messages
    assert (fake.targets["batch"].value > 0) is bool(stats)


@pytest.mark.parametrize(
    ("instance_changes", "status"),
    [
        pytest.param({"state": InstanceState.STOPPING}, READY, id="on its way out"),
        pytest.param({"group": "elsewhere"}, READY, id="of an unknown group"),
        pytest.param({"group": None}, READY, id="of no group"),
        pytest.param({}, replace(READY, ready=False), id="not ready"),
        pytest.param({}, replace(READY, draining=True), id="draining"),
        pytest.param({}, None, id="its agent is silent"),
    ],
)
def test_only_replicas_in_service_count_as_ready(
    instance_changes: Mapping[str, Any], status: AgentStatus | None
) -> None:
    fake, watchdog, _ = scaled(BUSY)
    other = instance(3, **instance_changes)
    fake.instances[other.id] = other
    if status is not None:
        fake.agents[other.id] = status
    assert [view.ready for view in watchdog.dry().observed] == [2]


def test_a_pool_without_a_written_target_has_the_target_of_its_settings() -> None:
    fake, watchdog, _ = scaled(BUSY)
    fake.targets = {"batch": Target(pool="batch", value=5, version=7)}
    assert [view.target for view in watchdog.dry().observed] == [5]
    fake.targets = {}
    assert [view.target for view in watchdog.dry().observed] == [2]


def test_nan_of_an_empty_histogram_is_not_a_latency() -> None:
    _, watchdog, _ = scaled({**BUSY, "first_token": float("nan")}, first_token_s=0.5)
    seen = watchdog.dry().observed[0].pressure
    assert seen is not None
    assert seen.first_token_s is None


def test_a_ready_replica_is_read_only_where_its_own_metrics_are() -> None:
    """A draining one still reports, and made the count whole."""
    fake, watchdog, _ = scaled(BUSY | {"requests": 0.0, "requests_peak": 0.0, "running_peak": 0.0, "coverage": 1.0})
    ready = instance(1).id
    draining = instance(3)
    fake.instances[draining.id] = draining
    fake.agents[draining.id] = replace(READY, ready=False, draining=True)
    store = watchdog._ports.metrics  # pyright: ignore[reportPrivateUsage]
    assert isinstance(store, Store)
    store.read = (ready, draining.id)
    (decision,) = watchdog.dry().plan.decisions
    assert (decision.reason, decision.detail) == (
        Reason.METRICS_MISSING,
        "1 of 2 replicas report all load metrics",
    )


def test_history_is_read_from_series_that_are_recorded() -> None:
    written = {r.name for r in rules.recordings(rules.RuleSettings())}
    needed = {recorded.POOL_RUNNING, recorded.POOL_WAITING, recorded.POOL_ENGINES}
    latency = {recorded.POOL_TTFT_P95, recorded.POOL_ITL_P95}
    assert needed | latency <= written


def test_a_constant_load_is_tried_on_fewer_replicas_once_a_day() -> None:
    """42 requests, engines of 16, almost no KV cache in use: two replicas queue, three do not."""
    target, moves, queued_at = 4, list[int](), -10_000
    for minute in range(0, 24 * 60):
        running = min(42, 16 * target)
        waiting = 42 - running
        queued_at = minute if waiting > 4 * target else queued_at
        seen = Pressure(
            reporting=target,
            kv_cache=0.1,
            kv_cache_peak=0.1,
            running_peak=running,
            waiting=waiting,
            waiting_peak=10.0 if minute - queued_at <= 15 else 0.0,
            full=16.0 if queued_at >= 0 else None,
        )
        _, _, to = judged(pool(target=target, ready=target, pressure=seen))
        if to is not None:
            target = to
            moves.append(to)
    assert moves == [3, 2, 3]


def test_a_steep_latency_is_not_tried_again_and_again() -> None:
    """Three replicas' work, and latency that leaps over its objective where a replica has four fifths of one."""
    target, moves, slow, latencies = 4, list[int](), None, list[float]()
    for _ in range(24 * 60):
        latencies = [*latencies, 2.0 if 30 / target > 8 else 0.1][-15:]
        seen = Pressure(
            reporting=target,
            kv_cache=0.1,
            kv_cache_peak=0.1,
            running_peak=30.0,
            first_token_s=latencies[-1],
            first_token_peak_s=max(latencies),
            slow=slow,
        )
        slow = 30 / target if latencies[-1] > 0.5 else slow
        policy = ScalePolicy(first_token_s=0.5)
        _, _, to = judged(pool(target=target, ready=target, pressure=seen, policy=policy))
        if to is not None:
            target = to
            moves.append(to)
    assert moves == [3, 6, 5, 4]


def test_a_pool_without_a_ready_replica_starts_as_the_ledger_remembers() -> None:
    fake, watchdog, _ = scaled(BUSY)
    fake.agents.clear()
    assert [view.cold_start for view in watchdog.dry().observed] == [DEFAULT_BOOT]
    ready_at = START - timedelta(days=2)
    (boot,) = left_booting("batch-spot-a", 10, launched_at=ready_at - timedelta(minutes=21), ready_at=ready_at)
    fake.boots = {one.key: one for one in (boot, replace(boot, instance_id="i-other", pool="other"))}
    assert [view.cold_start for view in watchdog.dry().observed] == [timedelta(minutes=21)]
