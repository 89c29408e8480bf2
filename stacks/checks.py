"""What must hold between the values of settings, once each of them has the right form."""

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stacks.problems import Problem

if TYPE_CHECKING:
    from stacks.settings import Pool, Settings

ROOT = "gpu-fleet:fleet"


def check(settings: "Settings") -> list[Problem]:
    """Everything wrong between values, in the order of the file."""
    of_pools = (problem for index in range(len(settings.pools)) for problem in _pool(settings, index))
    return [*_zones(settings), *_network(settings), *_control(settings), *_names(settings), *of_pools]


def _zones(settings: "Settings") -> Iterator[Problem]:
    for index, zone in enumerate(settings.zones):
        if not zone.startswith(settings.region):
            yield Problem(
                path=f"{ROOT}.zones.{index}",
                wrong=f"lies outside region {settings.region}",
                value=zone,
                remedy="name zones of that region",
            )


def _network(settings: "Settings") -> Iterator[Problem]:
    network = settings.network
    path = f"{ROOT}.network.cidr"
    try:
        room = ipaddress.ip_network(network.cidr)
    except ValueError:
        remedy = "write one as 10.40.0.0/16, the first address of the network"
        yield Problem(path=path, wrong="is no network", value=network.cidr, remedy=remedy)
        return
    if not room.is_private and not room.is_loopback:
        yield Problem(path=path, wrong="is no private network", value=network.cidr, remedy="take one of 10.0.0.0/8")
    subnets = network.subnets if network.kind == "given" else dict.fromkeys(settings.zones, "")
    for zone in settings.zones:
        if zone not in subnets:
            yield Problem(
                path=f"{ROOT}.network.subnets",
                wrong=f"lacks zone {zone}",
                remedy="name a private subnet for every zone",
            )
    if network.kind == "made" and 2 ** max(network.zone_prefix - room.prefixlen, 0) < len(settings.zones) + 1:
        yield Problem(
            path=f"{ROOT}.network.zone_prefix",
            wrong=f"leaves no room in {network.cidr} for {len(settings.zones)} zones and the way out",
            value=network.zone_prefix,
            remedy="raise it or widen cidr",
        )


def _control(settings: "Settings") -> Iterator[Problem]:
    control = settings.control
    if control is None:
        for name in ("prometheus_url", "ledger_url", "router_url"):
            if getattr(settings, name) is None:
                remedy = "say where it is, or add control"
                yield Problem(path=f"{ROOT}.{name}", wrong="is missing, and there is no control host", remedy=remedy)
        return
    if control.routers > len(settings.zones):
        yield Problem(
            path=f"{ROOT}.control.routers",
            wrong=f"is more than the {len(settings.zones)} zones, and each router has a zone of its own",
            value=control.routers,
            remedy="lower it or add zones",
        )
    for index, client in enumerate(control.client_networks):
        path = f"{ROOT}.control.client_networks.{index}"
        try:
            everybody = ipaddress.ip_network(client).prefixlen == 0
        except ValueError:
            yield Problem(path=path, wrong="is no network", value=client, remedy="write one as 10.0.0.0/8")
            continue
        if everybody:
            yield Problem(path=path, wrong="is everybody", value=client, remedy="name the networks of your clients")


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
