"""Checks between values of an environment's settings. They run after each value has passed the check of its form."""

import ipaddress
import re
from collections.abc import Iterator
from datetime import date
from typing import Final

from gpufleet.domain.model import Cloud
from gpufleet.domain.regions import REGIONS
from gpufleet.domain.secrets import find_secrets
from gpufleet.settings import KEY
from gpufleet.settings.environment import Settings
from gpufleet.settings.problems import Problem
from stacks import accelerator_checks, pool_checks, reference_checks, value_checks

_IMAGES: Final = {
    Cloud.AWS: (r"ami-[0-9a-f]{8,17}|resolve:ssm:/[\w./-]+:\d+", "an AMI id or resolve:ssm:/<parameter>:<version>"),
    Cloud.GCP: (r"projects/[\w.-]+/global/images/[\w./-]+", "projects/<project>/global/images/<image>"),
}
_ACCOUNTS: Final = {
    Cloud.AWS: (r"[0-9]{12}", "12 digits, in quotes"),
    Cloud.GCP: (r"[a-z][a-z0-9-]{4,28}[a-z0-9]", "the project's id"),
}


def check(settings: Settings, today: date) -> list[Problem]:
    """Return every problem between values, in the order of the file."""
    of_pools = (
        problem
        for place, pool in enumerate(settings.pools)
        for problem in pool_checks.check(settings, pool, f"{KEY}.pools.{place}", today)
    )
    return [
        *_identity(settings),
        *_zones(settings),
        *_network(settings),
        *_images(settings),
        *accelerator_checks.check(settings, KEY),
        *_control(settings),
        *_duplicate_names(settings),
        *_models(settings),
        *_exceptions(settings, today),
        *reference_checks.check(settings, KEY),
        *value_checks.check(settings, KEY, today),
        *of_pools,
    ]


def _models(settings: Settings) -> Iterator[Problem]:
    for index, model in enumerate(settings.models):
        if not re.fullmatch(r"(hf|s3|gs)://[^\s/][^\s]*", model.source):
            yield Problem(
                path=f"{KEY}.models.{index}.source",
                wrong="is not a source of models",
                value=model.source,
                remedy="write hf://org/name@revision, s3://bucket/folder or gs://bucket/folder with safetensors",
            )
        elif find_secrets(model.source) or ".." in model.source.split("/"):
            yield Problem(
                path=f"{KEY}.models.{index}.source",
                wrong="contains more than a location",
                remedy="remove user names, passwords and `..` from it",
            )


def _exceptions(settings: Settings, today: date) -> Iterator[Problem]:
    for index, exception in enumerate(settings.policies.exceptions):
        if exception.until < today:
            yield Problem(
                path=f"{KEY}.policies.exceptions.{index}.until",
                wrong="is in the past, so the exception is no longer valid",
                value=exception.until.isoformat(),
                remedy="remove it, or agree with its owner on a later day",
            )


def _identity(settings: Settings) -> Iterator[Problem]:
    pattern, form = _ACCOUNTS[settings.cloud]
    if not re.fullmatch(pattern, settings.account):
        yield Problem(
            path=f"{KEY}.account",
            wrong=f"is not an account of {settings.cloud}",
            value=settings.account,
            remedy=f"write {form}",
        )


def _zones(settings: Settings) -> Iterator[Problem]:
    for index, zone in enumerate(settings.zones):
        if settings.region not in REGIONS[settings.cloud] or zone[:-1].rstrip("-") == settings.region:
            continue
        yield Problem(
            path=f"{KEY}.zones.{index}",
            wrong=f"is outside region {settings.region}",
            value=zone,
            remedy="write zones of that region",
        )


def _network(settings: Settings) -> Iterator[Problem]:
    network = settings.network
    path = f"{KEY}.network.cidr"
    try:
        addresses = ipaddress.IPv4Network(network.cidr)
    except ValueError:
        remedy = "write the first address and the prefix length, for example 10.40.0.0/16"
        yield Problem(path=path, wrong="is not a network", value=network.cidr, remedy=remedy)
        return
    if not any(addresses.subnet_of(private) for private in _PRIVATE):
        remedy = "use a part of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16"
        yield Problem(path=path, wrong="is not a private network", value=network.cidr, remedy=remedy)
        return
    if network.kind == "given":
        if missing := [zone for zone in settings.zones if zone not in network.subnets]:
            yield Problem(
                path=f"{KEY}.network.subnets",
                wrong=f"does not contain {', '.join(missing)}",
                remedy="name a private subnet for every zone",
            )
    elif settings.cloud is Cloud.AWS and not 16 <= addresses.prefixlen <= 28:
        remedy = "write a network of /16 to /28"
        yield Problem(path=path, wrong="has a size that a VPC cannot have", value=network.cidr, remedy=remedy)
    elif 2 ** max(network.zone_prefix - addresses.prefixlen, 0) < len(settings.zones) + 1:
        subnets = f"{len(settings.zones)} subnets for zones and one for internet access"
        yield Problem(
            path=f"{KEY}.network.zone_prefix",
            wrong=f"is too short: {subnets} do not fit into {network.cidr}",
            value=network.zone_prefix,
            remedy="raise it, or widen cidr",
        )


_PRIVATE: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8")
)
"""Private address ranges, which contain no internet address. The last one is the embedded cloud's."""


def _images(settings: Settings) -> Iterator[Problem]:
    pattern, form = _IMAGES[settings.cloud]
    named = {f"machines.{path}": image for path, image in settings.machines.images().items()}
    if settings.control:
        named["control.image"] = settings.control.image
    for place, image in named.items():
        if not re.fullmatch(pattern, image):
            yield Problem(
                path=f"{KEY}.{place}",
                wrong=f"is not a pinned machine image of {settings.cloud}",
                value=image,
                remedy=f"write {form}",
            )


def _control(settings: Settings) -> Iterator[Problem]:
    control = settings.control
    if control is None:
        for name in ("prometheus_url", "ledger_url", "router_url"):
            if getattr(settings, name) is None:
                remedy = "write its URL, or add control"
                wrong = "is missing, and the settings have no control host"
                yield Problem(path=f"{KEY}.{name}", wrong=wrong, remedy=remedy)
        return
    if control.routers > len(settings.zones):
        yield Problem(
            path=f"{KEY}.control.routers",
            wrong=f"is more than the {len(settings.zones)} zones, and each router needs its own zone",
            value=control.routers,
            remedy="lower it, or add zones",
        )
    if control.image.startswith("resolve:"):
        remedy = "write the id of an AMI"
        yield Problem(path=f"{KEY}.control.image", wrong="is not an AMI", value=control.image, remedy=remedy)
    yield from value_checks.client_networks(f"{KEY}.control.client_networks", control.client_networks)


def _duplicate_names(settings: Settings) -> Iterator[Problem]:
    named = {
        "pools": [pool.name for pool in settings.pools],
        "models": [model.name for model in settings.models],
    }
    for kind, found in named.items():
        seen: set[str] = set()
        for place, name in enumerate(found):
            if name in seen:
                path = f"{KEY}.{kind}.{place}.name"
                yield Problem(path=path, wrong="is used already", value=name, remedy="write a different name")
            seen.add(name)
