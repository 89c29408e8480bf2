"""Tokens per second and GPU, compared with a reference measurement for that model and GPU. Pure.

A rate is a sum divided by a sum: computed tokens (prompt without cached tokens, plus output) divided by the used time
of the machines times their GPUs. References are an argument: this package does not depend on an engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Final

from gpufleet.costs.allocation import ChargeKind, UseState
from gpufleet.costs.figures import Figure, computed_input
from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import MachineType, UnknownMachineError
from gpufleet.domain.model import Cloud
from gpufleet.ledger.counters import Tokens

_STEP: Final = Decimal("0.0001")
_ROUND: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSpeed:
    """The highest rate that was measured at full use."""

    tokens_per_second_per_gpu: Decimal | None
    """None: there is no measurement."""
    basis: str
    """The source of the measurement, or why it is unknown."""


References = Callable[[str, MachineType], ReferenceSpeed]
"""Served model (as the fleet names it) and machine to the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """One model on one machine type."""

    model: str
    machine_type: str
    gpu: str | None
    """None: the machine type is not in the catalogue."""
    gpus: Fraction | None
    """GPUs of one machine; less than one on fractional machines."""
    tokens: int | None
    """Computed tokens; None: unknown."""
    used: timedelta
    """Used time of all machines together, unmeasured time included."""
    reference: ReferenceSpeed

    @property
    def gpu_seconds(self) -> Decimal | None:
        """Used time times GPUs."""
        seconds = self._gpu_seconds()
        return None if seconds is None else _decimal(seconds)

    @property
    def tokens_per_second_per_gpu(self) -> Decimal | None:
        """None: tokens, GPUs or time are unknown."""
        seconds = self._gpu_seconds()
        return _decimal(self.tokens / seconds) if seconds and self.tokens is not None else None

    @property
    def share_of_reference(self) -> Decimal | None:
        """The served rate divided by the reference; None if one of them is unknown."""
        best, seconds = self.reference.tokens_per_second_per_gpu, self._gpu_seconds()
        if not best or not seconds or self.tokens is None:
            return None
        return _decimal(self.tokens / seconds / Fraction(best))

    def _gpu_seconds(self) -> Fraction | None:
        if self.gpus is None:
            return None
        return Fraction(self.used // timedelta(microseconds=1), 1_000_000) * self.gpus


def speeds(cells: Mapping[tuple[str, ...], Figure], cloud: Cloud, references: References) -> list[MeasuredSpeed]:
    """One row per model and machine type that was used, by name. `cells`: see gpufleet.costs.report."""
    used: dict[tuple[str, str], timedelta] = {}
    tokens: dict[tuple[str, str], Tokens] = {}
    for (_, model, kind, _, _, machine_type), figure in cells.items():
        if kind == ChargeKind.SHARED:
            continue
        at = (model, machine_type)
        times = (figure.times.get(state, timedelta()) for state in (UseState.USED, UseState.UNMEASURED))
        used[at] = sum(times, used.get(at, timedelta()))
        tokens[at] = tokens.get(at, Tokens()) + figure.tokens
    return [_row(at, used[at], tokens[at], cloud, references) for at in sorted(used) if used[at] or tokens[at].total]


def _row(at: tuple[str, str], used: timedelta, tokens: Tokens, cloud: Cloud, references: References) -> MeasuredSpeed:
    model, machine_type = at
    machine: MachineType | None = None
    try:
        machine = catalogue.machine(cloud, machine_type)
        reference = references(model, machine)
    except UnknownMachineError:
        reference = ReferenceSpeed(
            tokens_per_second_per_gpu=None, basis=f"unknown: {machine_type} is not in the catalogue"
        )
    return MeasuredSpeed(
        model=model,
        machine_type=machine_type,
        gpu=None if machine is None else machine.gpu,
        gpus=None if machine is None else machine.gpu_count * machine.gpu_share,
        tokens=_computed(tokens),
        used=used,
        reference=reference,
    )


def _computed(tokens: Tokens) -> int | None:
    if tokens.prompt is None or tokens.generation is None:
        return None
    return computed_input(tokens.prompt, tokens.cached) + tokens.generation


def as_text(row: MeasuredSpeed) -> tuple[str, ...]:
    """A row for people: model, GPUs, tokens per second and GPU, the reference and the share of it.

    An unknown value is shown as `unknown`.
    """
    gpus = row.machine_type if row.gpu is None else f"{_count(row.gpus)} x {row.gpu}"
    served, best, share = (row.tokens_per_second_per_gpu, row.reference.tokens_per_second_per_gpu,
                           row.share_of_reference)  # fmt: skip
    return (
        row.model,
        gpus,
        "unknown" if served is None else f"{served:,.1f}",
        "unknown" if best is None else f"{best:,.1f}",
        "unknown" if share is None else f"{share:.1%}",
    )


HEADINGS: Final = ("model", "GPUs", "tokens/s per GPU", "measured at full use", "share")


def _count(gpus: Fraction | None) -> str:
    return "?" if gpus is None else str(gpus)


def _decimal(value: Fraction) -> Decimal:
    exact = _ROUND.divide(Decimal(value.numerator), Decimal(value.denominator))
    return exact.quantize(_STEP, context=_ROUND)
