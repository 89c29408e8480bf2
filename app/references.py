"""Measured speed of a served model on a machine, as the reference value in a cost report.

This is the only module where reports combine measurements of engines (serving) with money (costs).
"""

from collections.abc import Mapping
from decimal import Decimal

from gpufleet.costs.speed import References, ReferenceSpeed
from gpufleet.domain.catalogue import MachineType
from serving.sizing import measurements

_STEP = Decimal("0.0001")


def references_of(sources: Mapping[str, str]) -> References:
    """The measurements of models. `sources`: model to its source."""

    def find(model: str, machine: MachineType) -> ReferenceSpeed:
        hub = hub_name(sources.get(model) or "")
        if hub is None:
            return _unknown("its model has no known name on a hub")
        row = measurements.most_measured(hub, machine.gpu, machine.gpu_count)
        if row is None or machine.gpu_share != 1:
            return _unknown(f"no measurement of {hub} on {machine.gpu_count} x {machine.gpu}")
        rate = Decimal(measurements.tokens_per_s(row)) / row.gpus
        return ReferenceSpeed(tokens_per_second_per_gpu=rate.quantize(_STEP), basis=measurement(row))

    return find


def hub_name(source: str) -> str | None:
    """`org/name` of a model from a hub; None for another source."""
    return source.removeprefix("hf://").partition("@")[0] if source.startswith("hf://") else None


def measurement(row: measurements.Row) -> str:
    """Describes the measurement for people."""
    return (
        f"{row.model} on {row.gpus} x {row.gpu}, {row.input_tokens} in and {row.output_tokens} out,"
        f" {row.concurrency} at once, {row.engine} (InferenceX)"
    )


def _unknown(why: str) -> ReferenceSpeed:
    return ReferenceSpeed(tokens_per_second_per_gpu=None, basis=f"unknown: {why}")
