"""Converts settings of a pool to the arguments of components and user data, for both clouds."""

import re
from typing import Final

from components.capacity import Ownership, PoolCapacity
from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.rsa import public_key
from gpufleet.settings.environment import ControlHostSettings, PoolSettings, Settings
from serving.engine_container import launch_of
from serving.instance_settings import BootLimits, EngineSettings, InstanceSettings
from stacks import accelerator_checks

_ECR: Final = re.compile(r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com/.+")
BUCKET_SCHEME = {Cloud.AWS: "s3", Cloud.GCP: "gs"}


def bucket_url(settings: Settings) -> str:
    return f"{BUCKET_SCHEME[settings.cloud]}://{settings.bucket.name}"


def registries(settings: Settings) -> tuple[str, ...]:
    """Return the AWS accounts whose registries hold the images that GPU instances run."""
    machines = settings.machines
    kinds = (one.exporter_image for one in machines.accelerators.values())
    exporters = (machines.dcgm_image, *kinds, machines.node_exporter_image, machines.gate_image)
    images = (*exporters, *(pool.engine.image for pool in settings.pools))
    return tuple(sorted({found[1] for image in images if image and (found := _ECR.fullmatch(image))}))


def owned(settings: Settings, pool: PoolSettings) -> Ownership:
    return Ownership(environment=settings.environment, pool=pool.name, owner=pool.owner)


def capacity(settings: Settings, pool: PoolSettings) -> PoolCapacity:
    """Return the pool's capacity. On-demand capacity uses every zone of the environment, unless the pool names
    zones.
    """
    ways = pool.capacity
    if ways.on_demand and not ways.on_demand.zones:
        on_demand = ways.on_demand.model_copy(update={"zones": settings.zones})
        ways = ways.model_copy(update={"on_demand": on_demand})
    return PoolCapacity(target=pool.target, spare=pool.spare, max=pool.max, ways=ways)


def accelerator_of(settings: Settings, pool: PoolSettings) -> AcceleratorKind:
    """Return the kind of accelerator of the pool's machine types. The checks refuse pools with several kinds."""
    return next(iter(accelerator_checks.kinds_of(settings.cloud, pool)), AcceleratorKind.NVIDIA)


def machine_image(settings: Settings, pool: PoolSettings) -> str:
    """Return the machine image of the pool's instances."""
    return settings.machines.image_of(accelerator_of(settings, pool))


def secret_place(settings: Settings, name: str) -> str:
    """Return the location of a secret that the settings name. Machines receive the location, never the value."""
    match settings.cloud:
        case Cloud.AWS:
            return f"ssm:{name}"
        case Cloud.GCP:
            return f"gcp-secret:projects/{settings.account}/secrets/{name}"


def boot_limits(pool: PoolSettings) -> BootLimits:
    """Return the time limit of each boot step in that pool."""
    return BootLimits(engine=pool.engine.start_limit)


def secrets_of_control(settings: Settings, control: ControlHostSettings | None) -> tuple[str, ...]:
    """Return the names of the secrets that the control host reads: the order signing key, and the engine key for its
    router.
    """
    named = () if control is None else sorted(set(control.secrets.values()))
    return (settings.engine_key, settings.orders.private_key, *named)


def order_keys(settings: Settings) -> tuple[str, ...]:
    """Return the public keys of authorized signers of orders to agents, one line per key."""
    return tuple(public_key(text).text for text in settings.orders.public_keys)


def instance_settings(settings: Settings, pool: PoolSettings, capacity_type: CapacityType) -> InstanceSettings:
    """Return the settings of an instance of that pool and capacity type."""
    kind = accelerator_of(settings, pool)
    own = settings.machines.accelerators.get(kind)
    return InstanceSettings(
        environment=settings.environment,
        cloud=settings.cloud,
        region=settings.region,
        pool=pool.name,
        capacity_type=capacity_type,
        bucket=bucket_url(settings),
        model=f"models/{pool.model}",
        served_name=pool.served_name or pool.model,
        adapters={name: f"models/{model}" for name, model in pool.adapters.items()},
        engine=EngineSettings(
            kind=pool.engine.kind,
            image=pool.engine.image,
            version=pool.engine.version,
            args=pool.engine.args,
            env=dict(pool.engine.env),
        ),
        accelerator=kind,
        dcgm_image=settings.machines.dcgm_image,
        accelerator_image=own.exporter_image if own is not None else None,
        node_exporter_image=settings.machines.node_exporter_image,
        gate_image=settings.machines.gate_image if launch_of(pool.engine.kind).gate else None,
        engine_key=secret_place(settings, settings.engine_key),
        order_keys=order_keys(settings),
        drain_deadline=pool.drain_deadline,
        boot_limits=boot_limits(pool),
    )
