"""Calls of a pass of the spot watchdog to AWS, in a market whose spot zones are all dry.

The clients are real, the region is in memory. The first pass of all reads what its zones remember of three days;
later ones, of the daemon or each a process of its own (cron), read what came since.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from benchmarks.dry_market import DryMarket
from benchmarks.table import Table
from gpufleet.domain.decisions import Target
from gpufleet.settings.document import FleetDocument, parse
from tests.watchdogs.plain import document
from tests.watchdogs.worlds import World
from watchdogs.observe.fleet import Lists
from watchdogs.policy import digests
from watchdogs.spot.watchdog import SpotWatchdog

SIZES: Final = ((1, 3), (1, 9), (10, 3), (50, 3))
"""Pools, and zones of each."""
BASE: Final = 10
"""Calls of a pass, beside one for each group with an open question and one for each action."""
LATER: Final = 20
"""Passes after the first one."""
EVERY: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What one pass asked for."""

    made: int
    by_operation: dict[str, int]
    open_groups: int
    """Groups that were asked for more or made smaller, or that have changed since the last pass."""
    actions: int

    @property
    def allowed(self) -> int:
        return BASE + self.open_groups + self.actions


class Fleet:
    """Pools of one wanted replica each, that no zone gives."""

    def __init__(self, pools: int, zones: int) -> None:
        self.document = _document(pools, zones)
        self.world = World()
        for pool in self.document.pools:
            self.world.targets[pool.name] = Target(pool=pool.name, value=1, version=1)
            self.world.seen.add(("spot", pool.name, digests(self.document, "spot")[pool.name]))
        self.market = DryMarket(self.document, self.world)
        self.lists = Lists()
        self._before: dict[str, tuple[int, int]] = {}

    def calls_of_a_pass(self, *, of_its_own: bool = False) -> Calls:
        """Run one; `of_its_own`: in a process that knows nothing but the ledger."""
        if of_its_own:
            self.lists = Lists()
        market = self.market
        market.calls.counts.clear()
        before, self._before = self._before, market.sizes()
        changed = {name for name, size in self._before.items() if before.get(name, size) != size}
        ports = replace(self.world.ports(), inventory=market.inventory, groups=market.groups)
        done = SpotWatchdog(self.document, ports, self.lists).apply()
        self.world.boot()
        self.world.now += EVERY
        counts = dict(market.calls.counts)
        acted = {outcome.decision.resource for outcome in done.outcomes}
        return Calls(
            made=sum(counts.values()),
            by_operation=counts,
            open_groups=len(acted | changed),
            actions=len(done.outcomes),
        )


def run() -> Iterator[Table]:
    """Each size: a first pass that asks every zone, and passes while they back off, of the daemon and of cron."""
    rows: list[tuple[str, ...]] = []
    for pools, zones in SIZES:
        for form, of_its_own in (("daemon", False), ("cron", True)):
            fleet = Fleet(pools, zones)
            fleet.market.refused_before(timedelta(days=3), timedelta(minutes=5))
            first = fleet.calls_of_a_pass()
            later = [fleet.calls_of_a_pass(of_its_own=of_its_own) for _ in range(LATER)]
            quiet = min(later, key=lambda calls: calls.made)
            asking = max(later, key=lambda calls: calls.made)
            rows += [
                _row(f"{pools} x {zones}", f"{form}: {name}", calls)
                for name, calls in (
                    ("first of all", first),
                    (f"of the next {LATER}, the most", asking),
                    (f"of the next {LATER}, the least", quiet),
                )
            ]
    yield Table(
        title="Calls of one pass of the spot watchdog, all spot zones dry",
        columns=("pools x zones", "pass", "calls", "groups with a question", "actions", "allowed", *_OPERATIONS),
        rows=tuple(rows),
        notes=(
            f"Allowed: {BASE}, one for each group with an open question and one for each action. The first pass of"
            " all reads three days of activities, a page of 100 refusals at a time; cron's passes know the rest from"
            " the ledger.",
        ),
    )


_OPERATIONS: Final = ("describe groups", "activities", "instances", "set size")


def _row(size: str, name: str, calls: Calls) -> tuple[str, ...]:
    count = calls.by_operation.get
    return (
        size,
        name,
        str(calls.made),
        str(calls.open_groups),
        str(calls.actions),
        str(calls.allowed),
        str(count("autoscaling:describe_auto_scaling_groups", 0)),
        str(count("autoscaling:describe_scaling_activities", 0)),
        str(count("ec2:describe_instances", 0)),
        str(count("autoscaling:set_desired_capacity", 0)),
    )


def _document(pools: int, zones: int) -> FleetDocument:
    made = json.loads(document().model_dump_json())
    entry = made["pools"][0]
    spot, on_demand = entry["groups"][0], entry["groups"][2]
    made["pools"] = [
        {
            **entry,
            "name": f"pool-{number}",
            "target": 1,
            "watchdogs": {"spot": {}},
            "groups": [
                *(
                    {**spot, "name": f"pool-{number}-spot-{zone}", "zone": f"us-east-1{'abcdefghi'[zone]}"}
                    for zone in range(zones)
                ),
                {**on_demand, "name": f"pool-{number}-od"},
            ],
        }
        for number in range(pools)
    ]
    return parse(json.dumps(made), "bench")
