"""Bounds of unknown costs contain the bill of a simulated cloud, and parts add up for any partition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gpufleet.costs.allocation import LedgerFacts
from gpufleet.costs.report import By, Report, ReportScope, build
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger.facts import CostPass, EndCause, Reservation, Run
from gpufleet.prices.book import PriceBook

T0 = datetime(2026, 11, 20, tzinfo=UTC)
REGION = "anywhere"
KNOWN, UNKNOWN = "known.xlarge", "unknown.xlarge"
RATES = {
    CapacityType.SPOT: (Decimal("0.36"), Decimal("0.5")),
    CapacityType.ON_DEMAND: (Decimal("0.72"), Decimal("0.9")),
}
CHANGE = 50_000
"""The second at which prices change."""
SECRET = Decimal("7")
"""USD per hour of resources without a price in any list."""


class ReportedEnd(StrEnum):
    """What the cloud reports about an end that no pass sees."""

    EXACT = "its time"
    CAUSE = "how it ended"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """An instance as its cloud records it. Times are seconds after T0."""

    name: str
    cloud: Cloud
    kind: CapacityType
    priced: bool
    pool: str
    start: int
    end: int | None
    taken: bool
    reported_end: ReportedEnd

    def rate(self, at: int) -> Decimal:
        return RATES[self.kind][at >= CHANGE] if self.priced else SECRET

    def cost(self, start: int, end: int) -> Decimal:
        """The cost of an interval of the run, in dollar-seconds."""
        cuts = [start, *(cut for cut in (CHANGE,) if start < cut < end), end]
        return sum((self.rate(a) * (b - a) for a, b in pairwise(cuts)), Decimal(0)) if start < end else Decimal(0)

    def billed(self, since: int, until: int, now: int) -> Decimal:
        """What the cloud bills for a window: the time, the minimum of one minute, and the credit after a
        preemption."""
        end = now if self.end is None else min(self.end, now)
        usd = self.cost(max(self.start, since), min(end, until))
        if self.end is None or self.end > now or not since <= self.end < until:
            return usd
        length, free = self.end - self.start, {Cloud.AWS: 3600, Cloud.GCP: 60}[self.cloud]
        if self.taken and self.kind is CapacityType.SPOT and length < free:
            return usd - self.cost(self.start, self.end)
        return usd + max(0, 60 - length) * self.rate(self.end - 1)

    def seen(self, passes: Sequence[int]) -> Run | None:
        """The run as the ledger has it after these passes. None: it starts and ends between two passes."""
        alive = [at for at in passes if self.start <= at and (self.end is None or at < self.end)]
        if not alive:
            return None
        missed = [at for at in passes if at > alive[-1]]
        cause = EndCause.PREEMPTED if self.taken else EndCause.ENDED
        ended: tuple[int, EndCause, bool] | None = None
        if self.end is not None and missed:
            ended = {
                ReportedEnd.EXACT: (self.end, cause, True),
                ReportedEnd.CAUSE: (missed[0], cause, False),
                ReportedEnd.NOTHING: (missed[0], EndCause.ABSENT, False),
            }[self.reported_end]
        return Run(
            cloud=self.cloud,
            instance_id=self.name,
            started_at=when(self.start),
            environment="e",
            region=REGION,
            zone="z",
            machine_type=KNOWN if self.priced else UNKNOWN,
            capacity_type=self.kind,
            pool=self.pool,
            model=f"model of {self.pool}",
            owner=f"team of {self.pool}",
            last_seen_at=when(alive[-1]),
            ended_at=None if ended is None else when(ended[0]),
            end_cause=None if ended is None else ended[1],
            end_exact=ended is not None and ended[2],
        )


def when(second: int) -> datetime:
    return T0 + timedelta(seconds=second)


def prices() -> PriceBook:
    prefix = {Cloud.AWS: "aws:ec2", Cloud.GCP: "gcp:compute"}
    return PriceBook(
        region=REGION,
        observed=[
            Price(sku=f"{name}:{KNOWN}:{kind}", region=REGION, usd_per_hour=usd, source="s", as_of=T0, valid_from=at)
            for name in prefix.values()
            for kind, rates in RATES.items()
            for usd, at in zip(rates, (T0 - timedelta(days=9), when(CHANGE)), strict=True)
        ],
    )


def report(runs: Sequence[Run], passes: Sequence[int], since: int, until: int, now: int) -> Report:
    scope = ReportScope(
        fleet="e", environment="e", cloud="aws", region=REGION,
        since=when(since), until=when(until), now=when(now),
        allow_unpriced=True,
    )  # fmt: skip
    last = CostPass(environment="e", at=when(passes[-1]), host="h", metrics_from=None, metrics_until=None)
    return build(scope, LedgerFacts(runs=runs, known=(when(passes[0]), when(passes[-1]))), prices(), (), last)


SECONDS = st.integers(0, 100_000)
EVERY = st.sampled_from([300, 1_200, 10_000])
GAPS = st.lists(st.tuples(SECONDS, st.integers(0, 60_000)), max_size=3)


def passes_of(every: int, gaps: Sequence[tuple[int, int]]) -> list[int]:
    """A pass at each step, except in gaps. The first pass is never missing."""
    missed = [range(start, start + length) for start, length in gaps]
    return [at for at in range(0, 100_001, every) if at == 0 or not any(at in gap for gap in missed)]


ENDS = st.one_of(st.none(), SECONDS, st.sampled_from([30, 59, 60, 61, 3_599, 3_600, 3_601, 5_000]))
SIMULATED_RUNS = st.builds(
    lambda start, length, kind, priced, **more: SimulatedRun(
        name="", start=start, end=None if length is None else start + length, kind=kind,
        # A credit without a price has no bounds, so instances without a price are never credited here.
        priced=priced or kind is CapacityType.SPOT, **more,
    ),
    start=SECONDS, length=ENDS, kind=st.sampled_from([CapacityType.SPOT, CapacityType.ON_DEMAND]),
    priced=st.booleans(), cloud=st.sampled_from(Cloud), pool=st.sampled_from(["a", "b"]), taken=st.booleans(),
    reported_end=st.sampled_from(ReportedEnd),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    records=st.lists(SIMULATED_RUNS, max_size=6),
    passes=st.builds(passes_of, EVERY, GAPS),
    cuts=st.lists(st.integers(1, 119_999), max_size=9, unique=True).map(sorted),
    now=st.integers(100_000, 130_000),
)
@example(
    # preempted in its first hour, credited in a window that begins after it was last seen
    records=[
        SimulatedRun(name="", cloud=Cloud.AWS, kind=CapacityType.SPOT, priced=True, pool="a", start=0, end=1_800,
                     taken=True, reported_end=ReportedEnd.NOTHING)
    ],
    passes=[0, 50_000], cuts=[900, 10_000], now=100_000,
)  # fmt: skip
def test_bounds_contain_the_bill_of_the_cloud_and_parts_add_up(
    records: list[SimulatedRun], passes: list[int], cuts: list[int], now: int
) -> None:
    named = [SimulatedRun(**{**vars(record), "name": f"i-{number}"}) for number, record in enumerate(records)]
    known = [(record, run) for record in named if (run := record.seen(passes)) is not None]
    runs = [run for _, run in known]
    whole = report(runs, passes, 0, 120_000, now)
    windows = [(since, until) for since, until in pairwise([0, *cuts, 120_000])]
    parts = [report(runs, passes, since, until, now) for since, until in windows]

    assert money.total(part.total.allocation for part in parts) == whole.total.allocation
    for (since, until), found in [((0, 120_000), whole), *zip(windows, parts, strict=True)]:
        for by in By:
            for bound in ("allocation", "least", "too_little", "too_much"):
                parted = money.total(getattr(figure, bound) for figure in found.groups[by].values())
                assert parted == getattr(found.total, bound)
        for pool in (None, "a", "b"):
            billed = sum(
                (record.billed(since, until, now) for record, _ in known if pool in (None, record.pool)), Decimal(0)
            )
            figure = found.total if pool is None else found.groups[By.POOL].get(pool)
            if figure is None:
                assert billed == 0
                continue
            assert figure.least <= figure.allocation
            assert figure.least <= billed
            assert figure.most is None or max(billed, figure.allocation) <= figure.most
            unpriced = any(not record.priced and pool in (None, record.pool) for record, _ in known)
            assert unpriced or figure.most is not None


RESERVED_INSTANCES, STEP = 4, 1_200
"""Declared instances of the shared reservation, and the seconds between two passes."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A reservation of which this fleet declares a part. Others change their use between passes."""

    declared: int
    own: tuple[tuple[int, int], ...]
    """Start and end of each instance of this fleet in it."""
    use: tuple[int, ...]
    """How many instances others would use, by pass."""

    def elsewhere(self, step: int) -> int:
        """How many instances others use: at most what this fleet leaves free."""
        mine = sum(start < (step + 1) * STEP and step * STEP < end for start, end in self.own)
        return min(self.use[step % len(self.use)], RESERVED_INSTANCES - mine)

    def billed(self, since: int, until: int) -> Decimal:
        """The fleet's own instances and the declared part of the unused ones, in dollar-seconds."""
        rate, usd = RATES[CapacityType.ON_DEMAND], Decimal(0)
        cuts = {since, until, CHANGE, *range(0, until, STEP), *(at for span in self.own for at in span)}
        for start, end in pairwise(sorted(at for at in cuts if since <= at <= until)):
            used = sum(begin <= start < stop for begin, stop in self.own)
            free = RESERVED_INSTANCES - used - self.elsewhere(start // STEP)
            part = used + Decimal(free * self.declared) / RESERVED_INSTANCES
            usd += part * rate[start >= CHANGE] * (end - start)
        return usd

    def known(self, passes: Sequence[int]) -> LedgerFacts:
        runs = [
            run
            for number, (start, end) in enumerate(self.own)
            if (run := SimulatedRun(
                name=f"i-{number}", cloud=Cloud.AWS, kind=CapacityType.RESERVED, priced=True, pool="a", start=start,
                end=end, taken=False, reported_end=ReportedEnd.NOTHING,
            ).seen(passes)) is not None
        ]  # fmt: skip
        rows = [
            Reservation(
                cloud=Cloud.AWS, reservation="cr-1", started_at=when(at), instances=RESERVED_INSTANCES,
                environment="e", region=REGION, zone="z", machine_type=KNOWN, last_seen_at=when(following), pool="a",
                elsewhere=self.elsewhere(at // STEP), seats=self.declared,
            )
            for at, following in pairwise(passes)
        ]  # fmt: skip
        far = [(when(a), when(b)) for a, b in pairwise(passes) if b - a > STEP]
        own = [replace(run, reservation="cr-1") for run in runs]
        return LedgerFacts(runs=own, reservations=rows, gaps=far, known=(when(passes[0]), when(passes[-1])))


LAST = 84 * STEP
OWN = st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda at: (at[0] * STEP, (at[0] + at[1]) * STEP))


@settings(max_examples=100, deadline=None)
@given(
    shared=st.builds(
        Shared, declared=st.integers(1, RESERVED_INSTANCES - 1), own=st.lists(OWN, max_size=2).map(tuple),
        use=st.lists(st.integers(0, RESERVED_INSTANCES), min_size=1, max_size=7).map(tuple),
    ),
    gaps=st.lists(st.tuples(st.integers(0, LAST), st.integers(0, 60_000)), max_size=3),
    cuts=st.lists(st.integers(1, LAST - 1), max_size=5, unique=True).map(sorted),
)  # fmt: skip
def test_bounds_contain_the_bill_of_a_reservation_that_others_use_unobserved(
    shared: Shared, gaps: list[tuple[int, int]], cuts: list[int]
) -> None:
    missed = [range(start, start + length) for start, length in gaps]
    passes = [at for at in range(0, LAST + 1, STEP) if at in (0, LAST) or not any(at in gap for gap in missed)]
    facts = shared.known(passes)
    assume(len(facts.runs) == len(shared.own))  # skip instances that no pass saw: the ledger has no record of them
    last = CostPass(environment="e", at=when(LAST), host="h", metrics_from=None, metrics_until=None)

    def of(since: int, until: int) -> Report:
        scope = ReportScope(fleet="e", environment="e", cloud="aws", region=REGION,
        since=when(since), until=when(until),
                      now=when(LAST), allow_unpriced=True)  # fmt: skip
        return build(scope, facts, prices(), (), last)

    whole = of(0, LAST)
    windows = [*pairwise([0, *cuts, LAST])]
    parts = [of(since, until) for since, until in windows]
    assert money.total(part.total.allocation for part in parts) == whole.total.allocation
    for (since, until), found in [((0, LAST), whole), *zip(windows, parts, strict=True)]:
        figure, truth = found.total, shared.billed(since, until)
        assert figure.most is not None
        # parts of a price are kept in nano-dollars
        assert figure.least - 1 <= truth <= figure.most + 1, (since, until)
