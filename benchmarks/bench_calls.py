"""Counts the API calls of a spot watchdog pass on each cloud, in a market without spot capacity in any zone.

The adapters are real, and the region is in memory. The first pass reads three days of each zone's history. Later
passes read only new events; they run in the daemon or each in its own process (cron).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from benchmarks.dry_market import DryMarket
from benchmarks.dry_market_google import GoogleDryMarket
from benchmarks.table import Table
from gpufleet.domain.decisions import Target
from gpufleet.domain.model import Cloud
from gpufleet.settings.document import FleetDocument, parse
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import document
from watchdogs.observe.fleet import SharedLists
from watchdogs.policy import digests
from watchdogs.spot.watchdog import SpotWatchdog

SIZES: Final = {
    Cloud.AWS: ((1, 3), (1, 9), (10, 3), (50, 3)),
    Cloud.GCP: ((1, 3), (10, 3), (50, 3)),
}
"""Numbers of pools, and of zones per pool."""
BASE: Final = 10
"""Calls of a pass, in addition to one for each group with an open request and one for each action."""
COMPLETED: Final = "autoscaling:complete_lifecycle_action"
LATER: Final = 20
"""Number of passes after the first one."""
EVERY: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one pass."""

    made: int
    by_operation: dict[str, int]
    open_groups: int
    """Number of groups whose size the pass changed, or that changed since the last pass."""
    actions: int
    """Outcomes and completed hooks."""

    @property
    def allowed(self) -> int:
        return BASE + self.open_groups + self.actions


class Fleet:
    """Pools with a target of one replica each, for which no zone has capacity."""

    def __init__(self, pools: int, zones: int, cloud: Cloud = Cloud.AWS, *, hooks: bool = False) -> None:
        self.document = _document(pools, zones, cloud)
        self.fleet = FakeFleet()
        for pool in self.document.pools:
            self.fleet.targets[pool.name] = Target(pool=pool.name, value=1, version=1)
            self.fleet.seen.add(("spot", pool.name, digests(self.document, "spot")[pool.name]))
        if cloud is Cloud.AWS:
            self.market = DryMarket(self.document, self.fleet, hooks=hooks)
        else:
            self.market = GoogleDryMarket(self.document, self.fleet)
        self.lists = SharedLists()
        self._before: dict[str, tuple[int, int]] = {}

    def calls_of_a_pass(self, *, of_its_own: bool = False) -> Calls:
        """Run a pass and count its calls. `of_its_own` runs it like a separate process, which knows only the
        ledger.
        """
        if of_its_own:
            self.lists = SharedLists()
        market = self.market
        market.calls.counts.clear()
        before, self._before = self._before, market.sizes()
        changed = {name for name, size in self._before.items() if before.get(name, size) != size}
        ports = replace(self.fleet.ports(), inventory=market.inventory, groups=market.groups)
        done = SpotWatchdog(self.document, ports, self.lists).apply()
        self.fleet.boot()
        self.fleet.now += EVERY
        counts = dict(market.calls.counts)
        acted = {outcome.decision.resource for outcome in done.outcomes}
        return Calls(
            made=sum(counts.values()),
            by_operation=counts,
            open_groups=len(acted | changed),
            actions=len(done.outcomes) + counts.get(COMPLETED, 0),
        )


def run() -> Iterator[Table]:
    """For each size, run a first pass that requests capacity in every zone, and later passes during backoff, in the
    daemon and in cron.
    """
    for cloud in SIZES:
        yield _table(cloud)


def _table(cloud: Cloud) -> Table:
    rows: list[tuple[str, ...]] = []
    for pools, zones in SIZES[cloud]:
        for form, of_its_own in (("daemon", False), ("cron", True)):
            fleet = Fleet(pools, zones, cloud)
            fleet.market.refused_before(timedelta(days=3), timedelta(minutes=5))
            first = fleet.calls_of_a_pass()
            later = [fleet.calls_of_a_pass(of_its_own=of_its_own) for _ in range(LATER)]
            quiet = min(later, key=lambda calls: calls.made)
            asking = max(later, key=lambda calls: calls.made)
            rows += [
                _row(cloud, f"{pools} x {zones}", f"{form}: {name}", calls)
                for name, calls in (
                    ("first of all", first),
                    (f"of the next {LATER}, the most", asking),
                    (f"of the next {LATER}, the least", quiet),
                )
            ]
    return Table(
        title=f"Calls of one pass of the spot watchdog to {_NAMES[cloud]}, all spot zones dry",
        columns=("pools x zones", "pass", "calls", "groups with a question", "actions", "allowed", *_COUNTED[cloud]),
        rows=tuple(rows),
        notes=(
            f"Allowed: {BASE}, one for each group with an open question and one for each action. The first pass of"
            f" all reads three days of {_PAGES[cloud]} at a time; cron's passes know the rest from the ledger.",
        ),
    )


_NAMES: Final = {Cloud.AWS: "AWS", Cloud.GCP: "Google Cloud"}
_PAGES: Final = {Cloud.AWS: "activities, a page of 100 refusals", Cloud.GCP: "operations, a page of 500"}
_COUNTED: Final = {
    Cloud.AWS: {
        "describe groups": {"autoscaling:describe_auto_scaling_groups"},
        "activities": {"autoscaling:describe_scaling_activities"},
        "instances": {"ec2:describe_instances"},
        "set size": {"autoscaling:set_desired_capacity"},
    },
    Cloud.GCP: {
        "lists of groups": {"compute:instance_group_managers.aggregated_list"},
        "operations": {"compute:zone_operations.list"},
        "instances": {"compute:instances.aggregated_list"},
        "set size": {
            "compute:instance_group_managers.resize_unary",
            "compute:region_instance_group_managers.resize_unary",
        },
    },
}
"""The calls that each column counts, by column title."""


def _row(cloud: Cloud, size: str, name: str, calls: Calls) -> tuple[str, ...]:
    counted = [sum(calls.by_operation.get(one, 0) for one in some) for some in _COUNTED[cloud].values()]
    figures = (calls.made, calls.open_groups, calls.actions, calls.allowed, *counted)
    return (size, name, *map(str, figures))


def _document(pools: int, zones: int, cloud: Cloud) -> FleetDocument:
    made = json.loads(document().model_dump_json())
    entry = made["pools"][0]
    spot, on_demand = entry["groups"][0], entry["groups"][2]
    region = "us-east-1"
    if cloud is Cloud.GCP:
        region = "us-central1"
        made |= {"cloud": "gcp", "region": region, "bucket": "gs://b", "account": "p"}
        spot, on_demand = ({**one, "machine_types": ["g2-standard-8"]} for one in (spot, on_demand))
        on_demand["zone"] = None
    dash = "-" if cloud is Cloud.GCP else ""
    made["pools"] = [
        {
            **entry,
            "name": f"pool-{number}",
            "target": 1,
            "watchdogs": {"spot": {}},
            "groups": [
                *(
                    {**spot, "name": f"pool-{number}-spot-{zone}", "zone": f"{region}{dash}{'abcdefghi'[zone]}"}
                    for zone in range(zones)
                ),
                {**on_demand, "name": f"pool-{number}-od"},
            ],
        }
        for number in range(pools)
    ]
    return parse(json.dumps(made), "bench")
