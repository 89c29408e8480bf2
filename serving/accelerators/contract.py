"""The contract of an accelerator: what each number of its exporters means, and what it can prove.

Exporters use different names, units and labels, and some report 0 where they cannot measure. A contract states for
each number its unit, the part of the hardware that it describes, and where it is missing or wrong. Code outside
`serving.accelerators` uses canonical metrics only and never asks which kind of accelerator it is. Values and
functions only: no I/O, standard library only.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.launch import AcceleratorLaunch
from serving.metrics import Metric
from serving.releases import Versions


class SeriesUnit(StrEnum):
    """The unit of a number on an exporter's page. The value is the label `unit` at the metrics store."""

    RATIO = "ratio"
    PERCENT = "percent"
    BYTES = "bytes"
    MIB = "mebibytes"
    WATTS = "watts"
    JOULES = "joules"
    MILLIJOULES = "millijoules"
    MICROJOULES = "microjoules"
    SECONDS = "seconds"
    EXECUTIONS = "executions"
    OK_IS_1 = "1_is_healthy"
    OK_IS_0 = "0_is_healthy"

    def convert(self, value: float) -> float:
        """Return the value in the unit of the canonical metric."""
        if self in HEALTHY_AT:
            return float(value == HEALTHY_AT[self])
        return value * FACTORS[self][1]


FACTORS: Final[Mapping[SeriesUnit, tuple[str, float]]] = MappingProxyType(
    {
        SeriesUnit.RATIO: (metrics.SHARE, 1.0),
        SeriesUnit.PERCENT: (metrics.SHARE, 0.01),
        SeriesUnit.BYTES: (metrics.BYTES, 1.0),
        SeriesUnit.MIB: (metrics.BYTES, float(1 << 20)),
        SeriesUnit.WATTS: (metrics.WATTS, 1.0),
        SeriesUnit.JOULES: (metrics.JOULES, 1.0),
        SeriesUnit.MILLIJOULES: (metrics.JOULES, 1e-3),
        SeriesUnit.MICROJOULES: (metrics.JOULES, 1e-6),
        SeriesUnit.SECONDS: (metrics.SECONDS, 1.0),
        SeriesUnit.EXECUTIONS: (metrics.EXECUTIONS_UNIT, 1.0),
    }
)
"""Unit of the canonical metric, and the factor to it."""
EXPORTED: Final = "exported_"
"""Prometheus renames a label of a page to this and its name, if the target has the label, too."""
HEALTHY_AT: Final[Mapping[SeriesUnit, float]] = MappingProxyType({SeriesUnit.OK_IS_1: 1.0, SeriesUnit.OK_IS_0: 0.0})
"""The value that means healthy."""


class Scope(StrEnum):
    """The part of the hardware that a number describes, also where the series has labels of a smaller part."""

    UNIT = "unit"
    """The schedulable unit: a slice, or a device without slices."""
    DEVICE = "device"
    HOST = "host"


class UnknownCode(StrEnum):
    """Why a page does not show whether a unit is idle. The values are stable codes."""

    MISSING_SERIES = "missing_series"
    NO_WORKLOAD = "no_workload"
    """The series exist only while a program holds the device."""
    NO_PROFILING = "no_profiling"
    """The device reports no profiling metrics, and the others are too coarse."""
    PARTITION = "partition_not_measured"
    """The device is partitioned, and its exporter reports 0 for partitions that it does not measure."""
    SHARED = "shared_device"
    """Several programs use the unit, and its number is their total: it can veto, but proves nothing for one of them.
    """
    BLANK = "blank_value"
    """The exporter reports its value for "no measurement"."""
    IMPLAUSIBLE = "implausible_value"
    KEPT_VALUE = "kept_value"
    """Activity without an execution: the exporter repeats the last value of a program that ended."""
    REPEATED = "repeated_values"
    """A number that changes on each working host was constant: the exporter repeats old values."""
    WINDOW_TOO_SHORT = "window_too_short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A program that serves a page with series of the contract."""

    name: str
    port: int
    path: str = "/metrics"
    releases: Versions = Versions()
    """Releases whose numbers have the meaning of the contract."""
    note: str = ""
    """For people: where it runs, what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSeries:
    """A metric of an exporter's page that carries a canonical metric."""

    name: str
    """Name on the page, without a prefix of the contract."""
    measures: Metric
    unit: SeriesUnit
    exporter: str
    scope: Scope = Scope.UNIT
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    """Regular expressions (RE2) of label values; a missing label is empty. Only series that match all are counted."""
    parts: tuple[str, ...] = ()
    """Labels that divide the number: the values of all its series add up to it. Other labels mark copies."""
    adds: bool = False
    """Whether the numbers of all names with this metric add up to it. Otherwise the names are alternatives."""
    every: timedelta = timedelta(seconds=30)
    """Time between two measurements."""
    zero_while_busy: bool = False
    """Whether it can be 0, or constant, while the unit computes. Then it can prove work, but not idleness."""
    kept_at_rest: bool = False
    """Whether it can stay above 0 after the unit stopped. Then it does not prove work."""
    fractions: bool = False
    """Whether a percentage has fractions. Otherwise a value between 0 and 1 is a share under its name."""
    absent: UnknownCode = UnknownCode.MISSING_SERIES
    """What it means that the page lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindSpot:
    """Series in which a 0 is not a measurement."""

    code: UnknownCode
    labels: Mapping[str, str]
    """Regular expressions (RE2) of label values that the series have."""
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresPerDevice:
    """Where a page reports how many slices a device has, for slices that are numbered through the whole host."""

    series: str
    label: str
    where: Mapping[str, str]
    """Regular expressions of label values for which the slices are numbered that way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitIdentity:
    """The labels that identify a schedulable unit."""

    device: tuple[str, ...]
    """Alternative labels of the device: the first one that is not empty counts."""
    slice: tuple[str, ...] = ()
    """Labels that together identify a slice of the device; all empty: the unit is the whole device."""
    whole: Mapping[str, str] = field(default_factory=dict[str, str])
    """Regular expressions of label values with which a device is not divided, whatever its slice labels contain."""
    profile: str | None = None
    """Label with the size of the slice."""
    tenants: tuple[str, ...] = ()
    """Labels of the program that a series is attributed to. Several values on one unit: it is shared. The values are
    copies of one number."""
    sharing: tuple[str, ...] = ()
    """Labels that exist only on shared units."""
    copies: tuple[str, ...] = ()
    """More labels that do not distinguish measurements: series that differ in them only are counted once."""
    cores: CoresPerDevice | None = None

    def slice_of(self, labels: Mapping[str, str]) -> str:
        """Return the slice that the labels name; empty: the whole device."""
        parts = [labels.get(label, "") for label in self.slice]
        if not any(parts) or (self.whole and matches(self.whole, labels)):
            return ""
        return "/".join(parts)

    def tenant_of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the program that the labels name; all empty: none. A store that scraped the exporter in a pod of its
        own has renamed the labels of the page.
        """
        return tuple(labels.get(EXPORTED + label) or labels.get(label, "") for label in self.tenants)

    def device_of(self, labels: Mapping[str, str]) -> str:
        """Return the device that the labels name; empty: none."""
        return next((labels[label] for label in self.device if labels.get(label)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorEvidenceRule:
    """What the numbers of an accelerator can prove about work and idleness."""

    work: tuple[Metric, ...]
    """Each of them proves work: a gauge above 0, or a counter that changed in the window."""
    idle: tuple[Metric, ...]
    """All of them together prove that the unit was idle: gauges at 0 and counters constant in each sample of the
    window. A sample that is missing or unknown proves nothing."""
    window: timedelta
    """Shortest window over which `idle` is a proof."""
    program: str | None = None
    """Label of the program that a number is from, where a unit's activity can keep its last value after the program
    ended: the activity counts if a number of `work` with the same program shows work. None: no activity is kept."""
    clock: Metric | None = None
    """Time since the unit last computed. Below the length of the window it proves work between two samples."""
    pulse: Metric | None = None
    """A number that changes also at rest. Constant in the window: the exporter repeats old values, which prove
    nothing. None: the exporter has no such number."""
    measurements: int | None = None
    """Number of changes of `pulse` with which a shorter window is a proof, too: each is a new measurement. None: no
    number is enough."""


def never_blank(value: float) -> bool:
    """Whether a value means "no measurement": never. For exporters without such values."""
    del value
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorContract:
    """Everything that is specific to one kind of accelerator."""

    kind: str
    """The name in settings and metrics: the name of its module."""
    title: str
    exporters: tuple[Exporter, ...]
    series: tuple[AcceleratorSeries, ...]
    identity: UnitIdentity
    evidence: AcceleratorEvidenceRule
    launch: AcceleratorLaunch
    """How an instance runs with these accelerators. `run` states whether somebody tried it."""
    blind_spots: tuple[BlindSpot, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    """Prefixes that the exporter may give to all names."""
    is_blank: Callable[[float], bool] = never_blank
    """Whether a value on the page means "no measurement"."""
    sources: tuple[str, ...]
    """Where the facts are from: files with their commit or release, documentation, or recorded pages."""
    run: str | None = None
    """What of it the project ran, on which hardware. None: nothing, everything is read from its sources."""

    def carriers(self, metric: Metric) -> tuple[AcceleratorSeries, ...]:
        """Return the series that carry a canonical metric."""
        return tuple(series for series in self.series if series.measures is metric)


def matches(patterns: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether each label has a value that its pattern matches; a missing label is empty."""
    return all(re.fullmatch(pattern, labels.get(label, "")) is not None for label, pattern in patterns.items())


def faults(contract: AcceleratorContract) -> list[str]:
    """Return what a contract claims that its own numbers do not support. Empty: consistent."""
    return [*_series_faults(contract), *_evidence_faults(contract), *_identity_faults(contract)]


def _series_faults(contract: AcceleratorContract) -> list[str]:
    found: list[str] = []
    names = [series.name for series in contract.series]
    exporters = {exporter.name for exporter in contract.exporters}
    found += [f"{name} carries several metrics" for name in sorted({name for name in names if names.count(name) > 1})]
    for series in contract.series:
        unit = metrics.HEALTH if series.unit in HEALTHY_AT else FACTORS[series.unit][0]
        if unit != series.measures.unit:
            found.append(f"{series.name} has the unit {series.unit}, {series.measures} is in {series.measures.unit}")
        if series.exporter not in exporters:
            found.append(f"{series.name} names the exporter {series.exporter!r}, which {contract.kind} does not have")
        if series.adds and not all(other.adds for other in contract.carriers(series.measures)):
            found.append(f"{series.name} adds up with names that are alternatives")
    return found


def _evidence_faults(contract: AcceleratorContract) -> list[str]:
    found: list[str] = []
    rule = contract.evidence
    for metric in (*rule.work, *rule.idle, *(one for one in (rule.clock, rule.pulse) if one is not None)):
        if not contract.carriers(metric):
            found.append(f"evidence uses {metric}, which no series of {contract.kind} carries")
    for metric in rule.work:
        if any(series.kept_at_rest for series in contract.carriers(metric)):
            found.append(f"{metric} stays above 0 at rest, so it does not prove work")
    proofs: list[AcceleratorSeries] = []
    kept = any(series.kept_at_rest for series in contract.carriers(metrics.ACTIVE))
    if kept != (rule.program is not None):
        found.append("the label of the program and activity that stays above 0 at rest need each other")
    for metric in rule.idle:
        able = [series for series in contract.carriers(metric) if not series.zero_while_busy]
        if contract.carriers(metric) and not able:
            found.append(f"each series of {metric} can be 0 while the unit computes, so it does not prove idleness")
        proofs += able
    longest = max((series.every for series in proofs), default=timedelta(0))
    if rule.window < 2 * longest:
        found.append(f"the window of {rule.window} is shorter than two measurements of {longest}")
    return found


def _identity_faults(contract: AcceleratorContract) -> list[str]:
    identity = contract.identity
    found = [] if identity.device else ["no label identifies the device"]
    both = {*identity.device, *identity.slice} & {*identity.tenants, *identity.sharing, *identity.copies}
    found += [f"the label {label} identifies a unit and marks copies" for label in sorted(both)]
    divided = {label for series in contract.series for label in series.parts}
    both = divided & {*identity.device, *identity.slice, *identity.copies}
    found += [f"the label {label} divides a number and identifies a unit or marks copies" for label in sorted(both)]
    return found
