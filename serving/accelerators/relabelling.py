"""Canonical names and labels at the metrics store: Prometheus's relabelling of the exporters' pages."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final

from serving.accelerators.contract import (
    EXPORTED,
    AcceleratorContract,
    AcceleratorSeries,
    Scope,
    SeriesUnit,
    UnknownCode,
)
from serving.accelerators.queries import (
    DEVICE_LABEL,
    DIVISION_LABEL,
    DOUBT_LABEL,
    KIND_LABEL,
    SCOPE_LABEL,
    SLICE_LABEL,
    TENANT_LABEL,
    UNIT_LABEL,
    VETO,
)
from serving.engines.reading import EVIDENCE, PART_LABEL

Rule = dict[str, Any]
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def relabelling(contracts: Iterable[AcceleratorContract]) -> list[Rule]:
    """Return Prometheus's `metric_relabel_configs` that give these accelerators' series their canonical names.

    Series that `where` excludes keep their names, so no query counts them. Several names with one canonical name get
    the label `part`, and numbers whose 0 proves nothing the label `evidence`.
    """
    found: list[Rule] = []
    for contract in contracts:
        groups: dict[tuple[tuple[str, str], ...], list[AcceleratorSeries]] = {}
        for series in contract.series:
            groups.setdefault(tuple(sorted(series.where.items())), []).append(series)
        for where, group in groups.items():
            found += _Rules(contract=contract, where=dict(where), group=group).all()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The rules of series with the same condition. The new name comes last: all rules match the exporter's name."""

    contract: AcceleratorContract
    where: Mapping[str, str]
    group: list[AcceleratorSeries]

    def all(self) -> Iterator[Rule]:
        yield from self._identity()
        yield from self._evidence()
        for label, attribute in ((UNIT_LABEL, SeriesUnit), (SCOPE_LABEL, Scope)):
            for value in attribute:
                yield from self._rule([one for one in self.group if value in (one.unit, one.scope)], label, value)
        yield from self._parts()
        yield from self._rule(self.group, KIND_LABEL, self.contract.kind)
        for metric in dict.fromkeys(series.measures for series in self.group):
            yield from self._rule([one for one in self.group if one.measures is metric], "__name__", metric.name)

    def _rule(
        self, chosen: Iterable[AcceleratorSeries], label: str, value: str, more: Mapping[str, str] = _NONE
    ) -> Iterator[Rule]:
        """Yield the rule for these series; none without a series. `more`: regular expressions of more labels."""
        names = "|".join(series.name for series in chosen)
        prefix = "|".join(self.contract.prefixes)
        regexes = [f"(?:{regex})" for regex in self.where.values()]
        if names:
            yield {
                "source_labels": ["__name__", *self.where, *more],
                "regex": ";".join(
                    (f"(?:{prefix})(?:{names})" if prefix else f"(?:{names})", *regexes, *more.values())
                ),
                "target_label": label,
                # an exact `str`, which YAML can represent
                "replacement": f"{value}",
            }

    def _joined(self, chosen: Iterable[AcceleratorSeries], label: str, sources: tuple[str, ...]) -> Iterator[Rule]:
        """Yield rules that join the values of labels. All of them empty: no label."""
        if sources:
            chosen = list(chosen)
            value = "/".join(f"${number}" for number, _ in enumerate(sources, 1))
            yield from self._rule(chosen, label, value, dict.fromkeys(sources, "(.*)"))
            yield from self._rule(chosen, label, "", dict.fromkeys(sources, ""))

    def _identity(self) -> Iterator[Rule]:
        identity = self.contract.identity
        for label in reversed(identity.device):
            yield from self._rule(self.group, DEVICE_LABEL, "$1", {label: "(.+)"})
        yield from self._joined(self.group, SLICE_LABEL, identity.slice)
        if identity.whole:
            whole = {label: f"(?:{value})" for label, value in identity.whole.items()}
            yield from self._rule(self.group, SLICE_LABEL, "", whole)
        yield from self._joined(self.group, TENANT_LABEL, identity.tenants)
        yield from self._exported(identity.tenants)

    def _exported(self, tenants: tuple[str, ...]) -> Iterator[Rule]:
        """Yield rules for tenants whose labels Prometheus has renamed. The last rule that matches counts: the one for
        all labels that it renamed.
        """
        value = "/".join(f"${number}" for number, _ in enumerate(tenants, 1))
        for count in range(1, len(tenants) + 1):
            for renamed in combinations(tenants, count):
                sources = {
                    EXPORTED + one if one in renamed else one: "(.+)" if one in renamed else "(.*)" for one in tenants
                }
                yield from self._rule(self.group, TENANT_LABEL, value, sources)

    def _evidence(self) -> Iterator[Rule]:
        judged = [series for series in self.group if series.measures in self.contract.evidence.idle]
        yield from self._rule([series for series in judged if series.zero_while_busy], EVIDENCE, VETO)
        for label in self.contract.identity.sharing:
            yield from self._rule(self.group, DOUBT_LABEL, UnknownCode.SHARED, {label: ".+"})
            yield from self._rule(judged, EVIDENCE, VETO, {label: ".+"})
        for spot in self.contract.blind_spots:
            labels = {label: f"(?:{value})" for label, value in spot.labels.items()}
            blind = [series for series in self.group if series.measures in spot.metrics]
            yield from self._rule(blind, DOUBT_LABEL, spot.code, labels)
            yield from self._rule([series for series in blind if series in judged], EVIDENCE, VETO, labels)

    def _parts(self) -> Iterator[Rule]:
        for sources in dict.fromkeys(series.parts for series in self.group):
            yield from self._joined(
                [series for series in self.group if series.parts == sources], DIVISION_LABEL, sources
            )
        for series in self.group:
            if series.adds:
                value = "/".join((series.name, *(f"${number}" for number, _ in enumerate(series.parts, 1))))
                yield from self._rule((series,), DIVISION_LABEL, value, dict.fromkeys(series.parts, "(.*)"))
            if len(self.contract.carriers(series.measures)) > 1:
                yield from self._rule((series,), PART_LABEL, series.name)
