"""Reads pages of an accelerator's exporter by its contract: what its numbers are, and what they prove."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from app.engine_pages import samples_of
from app.errors import AppError, ErrorCode
from serving.accelerators import CONTRACTS
from serving.accelerators.contract import AcceleratorContract, Scope, UnknownCode, matches
from serving.accelerators.evidence import Judgement, ProvedActivity, TimedReading, contradicted_units, judge
from serving.accelerators.reading import AcceleratorReading, UnitKey, read
from serving.exposition import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorPageReport:
    """What pages of one exporter report and prove."""

    contract: AcceleratorContract
    reading: AcceleratorReading
    """The last page."""
    judgements: Mapping[UnitKey, Judgement]
    """What all pages together prove; empty for one page."""
    contradicted: tuple[str, ...]
    """Devices whose energy contradicts their power in two consecutive pages."""

    @property
    def doubts(self) -> Mapping[UnitKey, tuple[UnknownCode, ...]]:
        """Why the activity of each unit is not known, also of units that the last page does not report. Of one page:
        why such pages cannot prove that the unit is idle. Empty: they can.
        """
        if self.judgements:
            return {key: one.unknown for key, one in self.judgements.items()}
        pulse = self.contract.evidence.pulse
        return {
            key: unit.unknown
            if pulse is None or self.reading.evidence(key, pulse) is not None
            else tuple(sorted({*unit.unknown, UnknownCode.MISSING_SERIES}))
            for key, unit in self.reading.units.items()
        }

    @property
    def is_understood(self) -> bool:
        """Whether the activity of each unit is known, or such pages can prove it, and no energy contradicts power."""
        return bool(self.doubts) and not any(self.doubts.values()) and not self.contradicted


def contract_of(kind: str) -> AcceleratorContract:
    """Return the contract of a kind of accelerators by its name. Raises AppError."""
    try:
        return CONTRACTS[kind]
    except KeyError as error:
        known = ", ".join(CONTRACTS)
        message = f"accelerator {kind!r}: is not one of {known}; write one of them"
        raise AppError(message, ErrorCode.WRONG_USE) from error


def check(
    places: Sequence[str], kind: str | None, every: timedelta, *, shared: bool = False
) -> AcceleratorPageReport:
    """Read the pages at paths or http URLs, in the order of time.

    `kind`: None recognises the accelerator by the names of the first page. `every`: time between two pages. `shared`:
    programs share the devices.

    Raises:
        AppError: a page cannot be read, or its accelerator is not known.
    """
    pages = [samples_of(place) for place in places]
    contract = _recognise(places[0], pages[0]) if kind is None else contract_of(kind)
    timed = [
        TimedReading(at=number * every, reading=read(contract, page, shared=shared))
        for number, page in enumerate(pages)
    ]
    contradicted = {device for pair in zip(timed, timed[1:], strict=False) for device in contradicted_units(*pair)}
    judgements: Mapping[UnitKey, Judgement] = judge(contract, timed) if len(timed) > 1 else dict[UnitKey, Judgement]()
    return AcceleratorPageReport(
        contract=contract,
        reading=timed[-1].reading,
        judgements={key: _WRONG_UNIT if key.device in contradicted else one for key, one in judgements.items()},
        contradicted=tuple(sorted(contradicted)),
    )


_WRONG_UNIT: Final = Judgement(activity=ProvedActivity.UNKNOWN, unknown=(UnknownCode.IMPLAUSIBLE,))
"""Of a unit whose energy contradicts its power: numbers of its exporter have another unit."""


def _recognise(place: str, page: Sequence[Sample]) -> AcceleratorContract:
    # numbers of the host have general names, so they decide last
    for of_host in (False, True):
        for contract in CONTRACTS.values():
            names = {
                prefix + series.name: series
                for prefix in contract.prefixes
                for series in contract.series
                if (series.scope is Scope.HOST) is of_host
            }
            if any(one.name in names and matches(names[one.name].where, one.labels) for one in page):
                return contract
    known = ", ".join(CONTRACTS)
    raise AppError(
        f"{place}: has no metric of a known accelerator; give the page of its exporter,"
        f" or name the kind with --kind ({known})"
    )
