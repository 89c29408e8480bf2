"""The cost by slice of GPU instances that no fleet owns, from raw samples of a metrics store. Pure.

The rule is that of a fleet's report (`gpufleet.costs.slices`), over the window in which the instances are judged.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from app.cost_sources import METRIC_NAMES
from app.unit_names import UNIT_NAMES
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slice_bills import SliceReport, by_slice, shape_of
from gpufleet.costs.slices import BilledSpan, NodeBill, allocate
from gpufleet.costs.slots import Measure
from gpufleet.costs.unit_samples import unit_activity
from gpufleet.domain.model import Instance
from gpufleet.ledger.units import Sighting, UnitHour

NAMES: Final = tuple(
    dict.fromkeys((*UNIT_NAMES.all(), *METRIC_NAMES.requests, METRIC_NAMES.prompt, METRIC_NAMES.generation))
)
"""The metrics that it reads."""


def cost_by_slice(
    instances: Iterable[Instance],
    series: Iterable[RawSeries],
    usd_per_hour: Mapping[str, Decimal],
    window: timedelta,
    now: datetime,
) -> SliceReport:
    """Divide the list price of each instance with slices or shared devices over the window that ends now.

    `usd_per_hour`: by instance id; absent: unknown.
    """
    rows = unit_activity("", METRIC_NAMES, UNIT_NAMES, series, Measure())
    rows.sort(key=lambda row: (row.hour, row.instance_id))
    divided = {row.instance_id for row in rows}
    bills = {
        one.id: NodeBill(
            instance_id=one.id,
            shape=shape_of(one.cloud, one.machine_type),
            spans=[
                BilledSpan(start=max(now - window, one.launched_at), end=now, usd_per_hour=usd_per_hour.get(one.id))
            ],
        )
        for one in instances
        if one.id in divided and one.launched_at < now
    }
    return by_slice(allocate(bills, rows, _sightings(rows)))


def _sightings(rows: Iterable[UnitHour]) -> dict[str, Sequence[Sighting]]:
    hours: dict[tuple[str, str, str, str], list[datetime]] = defaultdict(list)
    for row in rows:
        hours[row.instance_id, row.device, row.slice, row.profile].append(row.hour)
    found: dict[str, list[Sighting]] = defaultdict(list)
    for (instance_id, device, part, profile), seen in hours.items():
        found[instance_id].append(Sighting(device, part, profile, min(seen), max(seen)))
    return dict(found)
