"""Where sizing is valid: the engine whose memory layout it has, the accelerators that its model is fitted to, and the
model's error on measurements that it is not fitted to."""

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind
from serving.engines.vllm import CONTRACT
from serving.sizing.measurements import measured
from serving.sizing.speed import SpeedError

ENGINE: Final = CONTRACT.kind


class Checked(NamedTuple):
    """Measured throughput against the model's, on measurements that the model is not fitted to."""

    low: float
    """Measured throughput minus the model's, as a share of the model's: the 10th percentile; the minimum of fewer
    than 10 measurements."""
    high: float
    """The 90th percentile, or the maximum."""
    measurements: int


CHECKED: Final[Mapping[tuple[str, int], Checked]] = {
    ("A100-40GB", 1): Checked(-0.10, 0.12, 31),
    ("A100-40GB", 2): Checked(-0.31, -0.08, 45),
    ("A100-40GB", 4): Checked(-0.32, 0.60, 54),
    ("A100-40GB", 8): Checked(1.01, 1.01, 1),
    ("A100-80GB", 1): Checked(-0.59, 0.13, 3),
    ("H100-80GB", 1): Checked(-0.27, -0.06, 47),
    ("H100-80GB", 2): Checked(-0.51, -0.36, 48),
    ("H100-80GB", 4): Checked(-0.58, 0.31, 84),
    ("H200-141GB", 1): Checked(0.25, 0.82, 11),
    ("H200-141GB", 2): Checked(0.32, 0.93, 5),
    ("H200-141GB", 4): Checked(0.67, 1.03, 4),
    ("H200-141GB", 8): Checked(0.10, 0.90, 3),
    ("L4", 1): Checked(-0.16, 0.35, 2),
    ("T4", 1): Checked(-0.34, -0.34, 1),
}
"""By GPU and GPUs per replica; tests/serving/sizing/test_validity.py computes it from its rows of measurements:
LLM-Inference-Bench (Argonne, vLLM of 2024), AccelMark (vLLM 0.7.3 and 0.20.1, one request at a time), and NVIDIA's
measurements of Llama-3.1-8B in FP8 (vLLM 0.12)."""
CHECKED_ON: Final[Mapping[int, Checked]] = {
    1: Checked(-0.26, 0.35, 95),
    2: Checked(-0.47, -0.08, 98),
    4: Checked(-0.55, 0.44, 142),
    8: Checked(0.10, 1.01, 4),
}
"""By GPUs per replica, over all GPUs of CHECKED."""


def not_modelled(engine: str) -> str | None:
    """Return why sizing does not apply to an engine; None: it applies."""
    if engine == ENGINE:
        return None
    return f"not modelled for {engine}: formulas and measured speeds are those of {CONTRACT.title}"


@cache
def modelled_kinds() -> frozenset[AcceleratorKind]:
    """Return the kinds of accelerators that the model is fitted to: others have only published speeds."""
    fitted = {row.gpu for row in measured()}
    return frozenset(machine.accelerator for machine in catalogue.machines() if machine.gpu in fitted)


def model_error(gpu: str, gpus: int) -> SpeedError:
    """Return the error of the modelled speed of a replica on these GPUs."""
    if (found := CHECKED.get((gpu, gpus))) is not None:
        return SpeedError(low=found.low, high=found.high, basis=_basis(found, f"{gpus} × {gpu}"))
    same = [count for count in CHECKED_ON if count <= gpus]
    found = CHECKED_ON[max(same)]
    where = f"other GPUs, {max(same)} per replica: none on {gpus} × {gpu}"
    return SpeedError(low=found.low, high=found.high, basis=_basis(found, where))


def _basis(found: Checked, where: str) -> str:
    most = "80 %" if found.measurements >= 10 else "all"
    return f"{most} of {found.measurements} measurements that the model is not fitted to, on {where}"
