"""Reads models from their files, and computes whether they fit on GPUs."""

from collections.abc import Sequence
from typing import Final

from app.errors import AppError, ErrorCode
from app.stores import StorageLocation, open_place
from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind, Gpu, UnknownMachineError
from gpufleet.domain.model import Cloud
from serving.cache.manifest import ManifestError
from serving.cache.sync import served_digest
from serving.sizing import families
from serving.sizing.fit import Fit, FitRequest, smallest_fit
from serving.sizing.model import ModelShape, SizingError, Weights, weigh
from serving.sizing.source import read_config, read_tensors

_STATIC_MEMORY: Final = frozenset({AcceleratorKind.NEURON, AcceleratorKind.TPU})
"""Kinds whose compiler divides the memory; the arithmetic of sizing is that of PyTorch on GPUs."""


def load_model(url: str) -> tuple[ModelShape, Weights]:
    """Shape and weights of a model. Raises AppError."""
    place = open_place(url)
    try:
        folder = _folder(place)

        def inside(name: str) -> str:
            return place.key(f"{folder}{name}")

        shape = families.read(read_config(place.store, inside))
        return shape, weigh(read_tensors(place.store, inside))
    except FileNotFoundError as error:
        raise AppError(f"{url}: {error}; a model's folder has config.json and safetensors") from error
    except (SizingError, OSError) as error:
        raise AppError(f"{url}: {error}") from error


def fits(model: ModelShape, weights: Weights, names: Sequence[str], request: FitRequest) -> list[tuple[str, Fit]]:
    """The model's smallest fit on each GPU or machine type of these names; without names on every GPU. Raises
    AppError.
    """
    try:
        return [(name, smallest_fit(model, weights, gpu, count, request)) for name, gpu, count in _targets(names)]
    except SizingError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error


def _folder(place: StorageLocation) -> str:
    """The folder of a model's files: the location itself, or the served revision in a bucket."""
    try:
        return f"{served_digest(place.store, place.prefix or '.')}/files/"
    except (OSError, ManifestError):
        return ""


def _targets(names: Sequence[str]) -> list[tuple[str, Gpu, int]]:
    """The candidates: name, GPU and number of GPUs."""
    if not names:
        return [(name, catalogue.gpu(name), 8) for name in _all_gpus()]
    return [_target(name) for name in names]


def _target(name: str) -> tuple[str, Gpu, int]:
    for cloud in Cloud:
        try:
            machine = catalogue.machine(cloud, name)
        except UnknownMachineError:
            continue
        if machine.accelerator in _STATIC_MEMORY:
            kind = machine.accelerator.label
            raise AppError(
                f"{name}: has {kind} accelerators, whose memory use sizing does not model", ErrorCode.WRONG_USE
            )
        if machine.gpu_share != 1:
            raise AppError(f"{name}: has a fraction of a GPU, which sizing does not support", ErrorCode.WRONG_USE)
        return name, catalogue.gpu(machine.gpu), machine.gpu_count
    try:
        return name, catalogue.gpu(name), 8
    except UnknownMachineError as error:
        raise AppError(f"{error}; a machine type such as g6.xlarge is accepted, too", ErrorCode.WRONG_USE) from error


def _all_gpus() -> list[str]:
    machines = (one for one in catalogue.machines() if one.accelerator not in _STATIC_MEMORY)
    used = {machine.gpu for machine in machines if machine.gpu_share == 1}
    found: list[str] = []
    for name in sorted(used):
        try:
            catalogue.gpu(name)
        except UnknownMachineError:
            continue
        found.append(name)
    return sorted(found, key=lambda name: catalogue.gpu(name).memory_mib)
