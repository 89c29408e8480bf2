"""The bills of nodes with slices or shared devices, from the charges of a report, and what they add up to. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Final

from gpufleet.costs.allocation import Charge, ChargeKind, UseState
from gpufleet.costs.slices import BilledSpan, NodeBill, NodePart
from gpufleet.costs.slot_parts import NodeShape, PartKey, PartState
from gpufleet.domain import money
from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import Cloud

_LOGICAL_CORES: Final = ("Trainium2", "Trainium3")
"""Devices whose slices may be of one or two physical cores: their size is not known."""


def node_bills(charges: Iterable[Charge], instances: Collection[str]) -> dict[str, NodeBill]:
    """The bills of these instances: their time by price and owner, and their minimum charges and credits."""
    times: dict[str, dict[BilledSpan, None]] = defaultdict(dict)
    fixed: dict[str, Decimal] = defaultdict(Decimal)
    shapes: dict[str, NodeShape] = {}
    for one in charges:
        if one.resource not in instances:
            continue
        shapes[one.resource] = shape_of(one.cloud, one.machine_type)
        if one.kind is ChargeKind.TIME:
            span = BilledSpan(
                start=one.start,
                end=one.end,
                usd_per_hour=None if one.price is None else one.price.usd_per_hour,
                pool=one.pool,
                model=one.model,
                owner=one.owner,
                is_starting=one.state is UseState.STARTING,
            )
            times[one.resource][span] = None  # used, idle and unmeasured time of one span are one span here
        elif one.amount is not None:
            fixed[one.resource] = money.EXACT.add(fixed[one.resource], one.amount)
    return {
        name: NodeBill(
            instance_id=name,
            shape=shape,
            spans=sorted(times[name], key=lambda span: span.start),
            fixed=fixed[name],
        )
        for name, shape in sorted(shapes.items())
    }


def shape_of(cloud: Cloud, machine_type: str) -> NodeShape:
    """The devices of a machine type; unknown if the catalogue does not have it."""
    try:
        found = machine(cloud, machine_type)
    except UnknownMachineError:
        return NodeShape(devices=None)
    units = 1 if found.gpu.startswith(_LOGICAL_CORES) else found.units_per_device
    return NodeShape(devices=found.gpu_count, gpu=found.gpu, units_per_device=units)


@dataclass(slots=True)
class SliceFigure:
    """The cost of a slice with one user, or of a part of a node without a slice."""

    amounts: dict[PartState, Decimal] = field(default_factory=lambda: defaultdict[PartState, Decimal](Decimal))
    """In dollar-seconds."""
    times: dict[PartState, timedelta] = field(default_factory=lambda: defaultdict[PartState, timedelta](timedelta))
    unpriced: timedelta = timedelta(0)
    """Time without a known price: the amounts are lower bounds."""

    def add(self, part: NodePart) -> None:
        """Add a part."""
        self.amounts[part.state] = money.EXACT.add(self.amounts[part.state], part.amount)
        self.times[part.state] += part.time
        self.unpriced += part.unpriced

    @property
    def amount(self) -> Decimal:
        """The sum, in dollar-seconds."""
        return money.total(self.amounts.values())

    @property
    def time(self) -> timedelta:
        """The time of the part in the window."""
        return sum(self.times.values(), timedelta(0))

    @property
    def usd_per_hour(self) -> Decimal | None:
        """USD per hour of this part, while it existed; None: no time, or a price is missing."""
        return None if self.unpriced else money.per_hour(self.amount, self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCost:
    """A row of a report by slice."""

    instance_id: str
    pool: str | None
    owner: str | None
    model: str | None
    key: PartKey
    kind: PartState
    """`used` for rows of slices and devices, whatever their use; otherwise the only state of the row."""
    figure: SliceFigure
    allocated_mj: int | None = None
    """Its part of the node's measured energy in millijoules: allocated, not measured. None: unknown."""

    @property
    def is_reported(self) -> bool:
        """Whether an exporter reported the part; if not, nothing is known about it."""
        return self.kind is not PartState.USED or bool(self.key.device or self.key.slice)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReport:
    """The cost of all nodes with slices or shared devices, by slice."""

    rows: Sequence[SliceCost] = ()
    total: SliceFigure = field(default_factory=SliceFigure)
    nodes: int = 0


_OWN_ROW: Final = (PartState.STRANDED, PartState.STARTING, PartState.FIXED)


def by_slice(parts: Iterable[NodePart]) -> SliceReport:
    """The rows of a report: one per slice and user, the largest first. Stranded compute has rows of its own."""
    figures: dict[tuple[object, ...], SliceFigure] = defaultdict(SliceFigure)
    firsts: dict[tuple[object, ...], tuple[NodePart, PartState]] = {}
    total, nodes = SliceFigure(), set[str]()
    for part in parts:
        kind = part.state if part.state in _OWN_ROW else PartState.USED
        key = (part.instance_id, part.pool or "", part.owner or "", part.model or "", part.key, kind)
        firsts.setdefault(key, (part, kind))
        figures[key].add(part)
        total.add(part)
        nodes.add(part.instance_id)
    rows = [
        SliceCost(
            instance_id=part.instance_id,
            pool=part.pool,
            owner=part.owner,
            model=part.model,
            key=part.key,
            kind=kind,
            figure=figures[key],
        )
        for key, (part, kind) in firsts.items()
    ]
    return SliceReport(rows=sorted(rows, key=_largest_first), total=total, nodes=len(nodes))


def with_energy(found: SliceReport, measured_mj: Mapping[str, int]) -> SliceReport:
    """Divide the measured energy of nodes over their parts like their cost; the parts add up to it.

    Exporters measure devices, not slices. A node without a measurement or with an unknown price has no such energy.
    """
    rows = list(found.rows)
    nodes: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.kind is not PartState.FIXED:
            nodes[row.instance_id].append(number)
    for name, numbers in nodes.items():
        figures = [rows[number].figure for number in numbers]
        weights = [figure.amount for figure in figures]
        if name in measured_mj and any(weights) and not any(figure.unpriced for figure in figures):
            parts = money.split(Decimal(measured_mj[name]), weights, Decimal(1))
            for number, part in zip(numbers, parts, strict=True):
                rows[number] = replace(rows[number], allocated_mj=int(part))
    return replace(found, rows=rows)


def _largest_first(row: SliceCost) -> tuple[object, ...]:
    return -row.figure.amount, row.instance_id, row.key, row.kind, row.pool or "", row.model or "", row.owner or ""
