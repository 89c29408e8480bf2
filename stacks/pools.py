"""Settings of a pool, as components and user data want them. The same for both clouds."""

from components.capacity import Block, Capacity, FlexStart, OnDemand, Owned, Reserved, Spot
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings.environment import Pool, Settings
from serving.engine import EngineKind
from serving.instance_settings import BootLimits, EngineSettings, InstanceSettings

BUCKET_SCHEME = {Cloud.AWS: "s3", Cloud.GCP: "gs"}


def bucket_url(settings: Settings) -> str:
    return f"{BUCKET_SCHEME[settings.cloud]}://{settings.bucket.name}"


def owned(settings: Settings, pool: Pool) -> Owned:
    return Owned(environment=settings.environment, pool=pool.name, owner=pool.owner)


def capacity(settings: Settings, pool: Pool) -> Capacity:
    """How the pool is bought."""
    bought = pool.capacity
    return Capacity(
        target=pool.target,
        spare=pool.spare,
        max=pool.max,
        reserved=tuple(
            Reserved(
                zone=reserved.zone,
                machine_type=reserved.machine_type,
                count=reserved.count,
                existing=reserved.existing,
                block=Block(starts=reserved.block.starts, ends=reserved.block.ends) if reserved.block else None,
                ends=reserved.ends.isoformat() if reserved.ends else None,
                review_by=reserved.review_by.isoformat() if reserved.review_by else None,
            )
            for reserved in bought.reserved
        ),
        spot=Spot(zones=bought.spot.zones, machine_types=bought.spot.machine_types) if bought.spot else None,
        on_demand=(
            OnDemand(
                max=bought.on_demand.max,
                machine_types=bought.on_demand.machine_types,
                zones=bought.on_demand.zones or settings.zones,
            )
            if bought.on_demand
            else None
        ),
        flex_start=(
            FlexStart(
                max=bought.flex_start.max,
                machine_type=bought.flex_start.machine_type,
                zone=bought.flex_start.zone,
                run=bought.flex_start.run,
            )
            if bought.flex_start
            else None
        ),
    )


def secret_place(settings: Settings, name: str) -> str:
    """Where machines of the environment find a secret that the settings name: they are told that, never its value."""
    match settings.cloud:
        case Cloud.AWS:
            return f"ssm:{name}"
        case Cloud.GCP:
            return f"gcp-secret:projects/{settings.account}/secrets/{name}"


def instance_settings(settings: Settings, pool: Pool, capacity_type: CapacityType) -> InstanceSettings:
    """What an instance of that pool and capacity type is told."""
    return InstanceSettings(
        environment=settings.environment,
        cloud=settings.cloud,
        region=settings.region,
        pool=pool.name,
        capacity_type=capacity_type,
        bucket=bucket_url(settings),
        model=f"models/{pool.model}",
        served_name=pool.served_name or pool.model,
        engine=EngineSettings(
            kind=EngineKind(pool.engine.kind),
            image=pool.engine.image,
            args=pool.engine.args,
            env=dict(pool.engine.env),
        ),
        dcgm_image=settings.machines.dcgm_image,
        node_exporter_image=settings.machines.node_exporter_image,
        agent_token=secret_place(settings, settings.agent_token),
        drain_deadline=pool.drain_deadline,
        boot_limits=BootLimits(engine=pool.engine.start_limit),
    )
