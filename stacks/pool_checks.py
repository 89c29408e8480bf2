"""Checks within a pool, and between a pool and its environment."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import ModelSettings, PoolSettings, Settings
from gpufleet.settings.problems import Problem
from serving.engine_container import LAUNCHED_NAMES, find_launch
from serving.engines import CONTRACTS
from serving.engines.launch import ArgumentError, EngineServer, Launch, wrong_arguments
from serving.releases import Version
from stacks import (
    accelerator_checks,
    adoption_checks,
    block_checks,
    efa_checks,
    flex_checks,
    pool_value_checks,
    reference_checks,
    slice_checks,
)

_ANY_SERVER: Final = EngineServer(
    model_path=PurePosixPath("/model"), served_name="model", host="127.0.0.1", port=1, shutdown_timeout_s=1
)
_CONTAINER: Final = 10
"""A major version so far above the known ones is the year of an image: Triton 2.71.0 is in the image 26.07."""
SHORTEST_START: Final = timedelta(seconds=10)
"""Minimum start timeout. No engine starts faster, so with a shorter limit no instance would become ready."""


def check(settings: Settings, pool: PoolSettings, path: str, today: date) -> Iterator[Problem]:
    """Yield every problem of one pool. `path` is the pool's position in the file."""
    yield from _limits(pool, path)
    yield from _capacity(pool, path)
    yield from _zones(settings, pool, path)
    yield from _reservations(settings, pool, path, today)
    model = next((model for model in settings.models if model.name == pool.model), None)
    if model is None:
        yield Problem(
            path=f"{path}.model",
            wrong=f"is not one of the models {', '.join(m.name for m in settings.models)}",
            value=pool.model,
            remedy="write one of them, or add it to models",
        )
    yield from _machines(settings, pool, path, model)
    yield from accelerator_checks.check_pool(settings, pool, path)
    yield from efa_checks.check(settings, pool, path)
    yield from flex_checks.check(settings, pool, path)
    yield from slice_checks.check(settings, pool, path)
    yield from adoption_checks.check(settings, pool, path)
    yield from reference_checks.check_pool(settings, pool, path)
    yield from _engine(pool, path)
    yield from _gate(settings, pool, path)
    yield from pool_value_checks.check(settings, pool, path)


def _engine(pool: PoolSettings, path: str) -> Iterator[Problem]:
    if (launch := find_launch(pool.engine.kind)) is None:
        yield Problem(
            path=f"{path}.engine.kind",
            wrong="is not an engine that the fleet starts",
            value=pool.engine.kind,
            remedy=f"write one of {LAUNCHED_NAMES}",
        )
    else:
        yield from _engine_arguments(pool, path, launch)
        yield from _engine_version(pool, path, launch)
    if pool.engine.start_limit < SHORTEST_START:
        yield Problem(
            path=f"{path}.engine.start_limit",
            wrong="is too short for an engine to start",
            value=f"{pool.engine.start_limit.total_seconds():.0f}s",
            remedy="write at least 10s, or leave it out for the default, 15m",
        )


def _engine_arguments(pool: PoolSettings, path: str, launch: Launch) -> Iterator[Problem]:
    wrong = list(wrong_arguments(launch, pool.engine.args))
    for index, error in wrong:
        yield pool_value_checks.engine_problem(f"{path}.engine.args.{index}", error, pool.engine.args[index])
    if not wrong:
        try:
            launch.arguments(replace(_ANY_SERVER, args=pool.engine.args))
        except ArgumentError as error:
            yield pool_value_checks.engine_problem(f"{path}.engine.args", error, " ".join(pool.engine.args))


def _engine_version(pool: PoolSettings, path: str, launch: Launch) -> Iterator[Problem]:
    """Report a release that is missing or cannot be read: the numbers of an unknown release prove nothing."""
    contract, version = CONTRACTS[pool.engine.kind], pool.engine.version
    first = contract.newest if launch.since is None else Version.parse(launch.since)
    remedy = f"write the release of {contract.title} in the image, for example {first}"
    if version is None:
        if contract.probes.version is None:
            wrong = f"is missing, and {contract.title} does not report its release"
            yield Problem(path=f"{path}.engine.version", wrong=wrong, remedy=remedy)
        return
    try:
        release = Version.parse(version if re.fullmatch(r"[\w.+-]{1,60}", version, re.ASCII) else "")
    except ValueError:
        yield Problem(path=f"{path}.engine.version", wrong="is not a release", value=version, remedy=remedy)
        return
    if release.major > contract.newest.major + _CONTAINER:
        yield Problem(path=f"{path}.engine.version", wrong="is not a release", value=version, remedy=remedy)
    elif launch.since is not None and release < first:
        wrong = f"is before {first}, the first release of {contract.title} that the fleet can start"
        yield Problem(path=f"{path}.engine.version", wrong=wrong, value=version, remedy="use a newer image")


def _needs_gate(pool: PoolSettings) -> bool:
    launch = find_launch(pool.engine.kind)
    return launch is not None and launch.gate is not None


def _gate(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Only the first pool that needs the image reports that it is missing."""
    needing = [one for one in settings.pools if _needs_gate(one)]
    if settings.machines.gate_image is None and needing[:1] == [pool]:
        yield Problem(
            path=f"{path.rpartition('.pools.')[0]}.machines.gate_image",
            wrong=f"is missing, and the engine of pool {pool.name}, {pool.engine.kind}, cannot protect itself",
            remedy="name an HAProxy image, 2.6 or later, by its digest: it runs in front of the engine",
        )


def _limits(pool: PoolSettings, path: str) -> Iterator[Problem]:
    if pool.min > pool.max:
        yield Problem(path=f"{path}.min", wrong=f"is above max {pool.max}", value=pool.min, remedy="lower it")
    elif not pool.min <= pool.target <= pool.max:
        yield Problem(
            path=f"{path}.target",
            wrong=f"is outside min {pool.min} to max {pool.max}",
            value=pool.target,
            remedy="choose a target between them",
        )
    for index, rule in enumerate(pool.watchdogs.scale.schedule if pool.watchdogs.scale else ()):
        if not pool.min <= rule.target <= pool.max:
            yield Problem(
                path=f"{path}.watchdogs.scale.schedule.{index}.target",
                wrong=f"is outside min {pool.min} to max {pool.max}",
                value=rule.target,
                remedy="choose a target between them",
            )


def _capacity(pool: PoolSettings, path: str) -> Iterator[Problem]:
    capacity = pool.capacity
    fallback = capacity.on_demand or capacity.flex_start
    if not capacity.reserved and capacity.spot is None and fallback is None:
        remedy = "add at least one of reserved, spot, on_demand, flex_start (Google Cloud)"
        yield Problem(path=f"{path}.capacity", wrong="is empty", remedy=remedy)
        return
    reserved = sum(reservation.count for reservation in capacity.reserved)
    if reserved > pool.max:
        yield Problem(
            path=f"{path}.capacity.reserved",
            wrong=f"reserves more instances than max {pool.max}",
            value=reserved,
            remedy="raise max, or reserve fewer",
        )
    if capacity.spot is None:
        most = reserved + (fallback.max if fallback else 0)
        if most < pool.target:
            yield Problem(
                path=f"{path}.capacity",
                wrong=f"allows at most {most} instances, which is below target {pool.target}",
                remedy=f"raise {'flex_start' if capacity.flex_start else 'on_demand'}.max, reserve more, or add spot",
            )
    places = [(r.zone, r.machine_type) for r in capacity.reserved]
    for index, place in enumerate(places):
        if place in places[:index]:
            yield Problem(
                path=f"{path}.capacity.reserved.{index}",
                wrong="reserves the same machine type in the same zone twice",
                value=" ".join(place),
                remedy="merge them into one reservation with the sum of their counts",
            )


def _zones(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    for place, zones in _zones_of(pool):
        for index, zone in enumerate(zones):
            where = f"{path}.{place}" if place.endswith("zone") else f"{path}.{place}.{index}"
            if zone not in settings.zones:
                yield Problem(
                    path=where,
                    wrong=f"is not one of the environment's zones {', '.join(settings.zones)}",
                    value=zone,
                    remedy="write one of them, or add it to zones",
                )
            elif zone in zones[:index]:
                yield Problem(path=where, wrong="is named twice", value=zone, remedy="name it once")


def _zones_of(pool: PoolSettings) -> Iterator[tuple[str, tuple[str, ...]]]:
    for index, reservation in enumerate(pool.capacity.reserved):
        yield f"capacity.reserved.{index}.zone", (reservation.zone,)
    if pool.capacity.spot:
        yield "capacity.spot.zones", pool.capacity.spot.zones
    if pool.capacity.on_demand:
        yield "capacity.on_demand.zones", pool.capacity.on_demand.zones
    if pool.capacity.flex_start:
        yield "capacity.flex_start.zone", (pool.capacity.flex_start.zone,)


def _reservations(settings: Settings, pool: PoolSettings, path: str, today: date) -> Iterator[Problem]:
    for index, reservation in enumerate(pool.capacity.reserved):
        where = f"{path}.capacity.reserved.{index}"
        if reservation.ends is None and reservation.review_by is None and reservation.block is None:
            remedy = "add ends, or review_by with the date of the next review"
            yield Problem(path=where, wrong="has neither an end nor a review date", remedy=remedy)
        if reservation.ends is not None and reservation.ends <= today:
            yield Problem(
                path=f"{where}.ends",
                wrong="is in the past",
                value=reservation.ends.isoformat(),
                remedy="remove the reservation, or write a later end",
            )
        yield from block_checks.check(settings, pool, reservation, where, today)
        if settings.cloud is Cloud.GCP and reservation.ends is None and reservation.existing is None:
            remedy = "add ends, because Google's reservations cannot store a review date"
            yield Problem(path=f"{where}.ends", wrong="is missing", remedy=remedy)


def _machines(settings: Settings, pool: PoolSettings, path: str, model: "ModelSettings | None") -> Iterator[Problem]:
    for place, _, name in pool.capacity.machine_type_fields():
        where = f"{path}.capacity.{place}"
        try:
            machine = catalogue.machine(settings.cloud, name)
        except catalogue.UnknownMachineError as error:
            wrong, _, hint = str(error.args[0]).partition(": ")
            yield Problem(path=where, wrong=wrong, value=name, remedy=hint or "choose a machine type of this cloud")
            continue
        if (obstacle := catalogue.launch_obstacle(machine)) is not None:
            remedy = "choose a machine type without a note in docs/reference/machines.md"
            yield Problem(path=where, wrong=obstacle, value=name, remedy=remedy)
            continue
        usable = pool_value_checks.weights_space_gib(machine)
        if model is not None and model.weights_gib > usable:
            yield Problem(
                path=where,
                wrong=f"has {usable:.1f} GiB of GPU memory for weights, and {model.name} needs {model.weights_gib:g}",
                value=name,
                remedy="choose a machine type with more GPU memory",
            )
    spot = pool.capacity.spot
    if settings.cloud is Cloud.GCP and spot is not None and len(spot.machine_types) > 1:
        yield Problem(
            path=f"{path}.capacity.spot.machine_types",
            wrong="names several machine types, and a zonal instance group of Google Cloud has one",
            value=list(spot.machine_types),
            remedy="keep the one that fits best; a second pool of the same model may use another",
        )
