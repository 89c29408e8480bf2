"""What must hold between the values of settings, once each of them has the right form."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stacks.problems import Problem

if TYPE_CHECKING:
    from stacks.settings import Pool, Settings

ROOT = "gpu-fleet:fleet"


def check(settings: "Settings") -> list[Problem]:
    """Everything wrong between values, in the order of the file."""
    of_pools = (problem for index in range(len(settings.pools)) for problem in _pool(settings, index))
    return [*_zones(settings), *_names(settings), *of_pools]


def _zones(settings: "Settings") -> Iterator[Problem]:
    for index, zone in enumerate(settings.zones):
        if not zone.startswith(settings.region):
            yield Problem(
                path=f"{ROOT}.zones.{index}",
                wrong=f"lies outside region {settings.region}",
                value=zone,
                remedy="name zones of that region",
            )


def _names(settings: "Settings") -> Iterator[Problem]:
    for kind, names in (
        ("pools", [pool.name for pool in settings.pools]),
        ("models", [model.name for model in settings.models]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Problem(
                    path=f"{ROOT}.{kind}.{index}.name",
                    wrong="is taken already",
                    value=name,
                    remedy="give each its own name",
                )


def _pool(settings: "Settings", index: int) -> Iterator[Problem]:
    pool, path = settings.pools[index], f"{ROOT}.pools.{index}"
    yield from _limits(pool, path)
    models = [model.name for model in settings.models]
    if pool.model not in models:
        yield Problem(
            path=f"{path}.model",
            wrong=f"is no model of these settings; there is {', '.join(models)}",
            value=pool.model,
            remedy="name one of those or add it to models",
        )
    for place, zone in _zones_of(pool):
        if zone not in settings.zones:
            yield Problem(
                path=f"{path}.{place}",
                wrong=f"is none of this environment's zones {', '.join(settings.zones)}",
                value=zone,
                remedy="name one of those or add it to zones",
            )


def _limits(pool: "Pool", path: str) -> Iterator[Problem]:
    if pool.min > pool.max:
        yield Problem(path=f"{path}.min", wrong=f"is above max {pool.max}", value=pool.min, remedy="lower it")
    elif not pool.min <= pool.target <= pool.max:
        yield Problem(
            path=f"{path}.target",
            wrong=f"is outside min {pool.min} to max {pool.max}",
            value=pool.target,
            remedy="choose a target between them",
        )
    if not pool.capacity.reserved and pool.capacity.spot is None and pool.capacity.on_demand is None:
        yield Problem(
            path=f"{path}.capacity",
            wrong="buys nothing",
            remedy="name at least one of reserved, spot, on_demand",
        )
    reserved = sum(reservation.count for reservation in pool.capacity.reserved)
    if reserved > pool.max:
        yield Problem(
            path=f"{path}.capacity.reserved",
            wrong=f"reserves more than max {pool.max}",
            value=reserved,
            remedy="raise max or reserve less",
        )


def _zones_of(pool: "Pool") -> Iterator[tuple[str, str]]:
    for index, reservation in enumerate(pool.capacity.reserved):
        yield f"capacity.reserved.{index}.zone", reservation.zone
    for kind, part in (("spot", pool.capacity.spot), ("on_demand", pool.capacity.on_demand)):
        for index, zone in enumerate(part.zones if part else ()):
            yield f"capacity.{kind}.zones.{index}", zone
