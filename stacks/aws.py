"""The Pulumi program for AWS."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pulumi

from components.aws import permissions
from components.aws.bucket import ModelBucket, put_file, put_text
from components.aws.control_host import (
    ControlHost,
    ControlHostArgs,
    MachineArgs,
    Routers,
    RoutersArgs,
    zones_of_routers,
)
from components.aws.fabric import Fabric
from components.aws.firewall import Firewall, FirewallArgs
from components.aws.gpu_pool import GpuPool, GpuPoolArgs
from components.aws.identities import MachineIdentity
from components.aws.network import Network, NetworkArgs
from components.aws.notices import Notices
from components.aws.permissions import MachineRole
from components.aws.templates import Disk, Template
from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import PATH_IN_BUCKET
from gpufleet.settings.environment import ControlHostSettings, MadeNetwork, PoolSettings, Settings
from serving import user_data
from stacks import control_data, pools
from stacks.agent import ROOT, AgentFile, agent_file
from stacks.document import describe
from stacks.origin import origin


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The network resources in which the environment is deployed."""

    prefix: str
    tags: Mapping[str, str]
    network_id: pulumi.Input[str]
    subnet_ids: Mapping[str, pulumi.Input[str]]
    firewall: Firewall
    fabrics: Mapping[str, Fabric]
    """Fabrics by pool name, for pools with EFA. Each pool has its own, so a compromised pool cannot reach the ports
    of another.
    """
    bucket: pulumi.Input[str]


def deploy(settings: Settings) -> None:
    """Declare the environment and write its fleet document."""
    place = _place(settings)
    agent = agent_file()
    uploaded = put_file("agent", place.bucket, user_data.archive_key(agent.sha256), agent.path)
    template = _template(settings, place)
    made = {pool.name: _pool(settings, pool, template, place, agent, uploaded) for pool in settings.pools}
    routers = None if settings.control is None else _control(settings, settings.control, place)
    _publish(settings, place, made, routers)


def _place(settings: Settings) -> _Place:
    prefix = f"gpu-fleet-{settings.environment}"
    common = {tags.ENVIRONMENT: settings.environment}
    given = settings.network
    if isinstance(given, MadeNetwork):
        made = Network(
            prefix,
            NetworkArgs(
                region=settings.region,
                account=settings.account,
                bucket=settings.bucket.name,
                cidr=given.cidr,
                zones=settings.zones,
                zone_prefix=given.zone_prefix,
                nat_gateway=given.internet == "nat",
                private_services=given.private_services,
                registries=pools.registries(settings),
                tags=common,
            ),
        )
        network_id, subnet_ids = made.id, made.subnet_ids
    else:
        network_id, subnet_ids = given.id, given.subnets
    clients = settings.control.client_networks if settings.control else ()
    routers = settings.control is not None and settings.control.routers > 1
    bucket = (
        settings.bucket.name
        if settings.bucket.existing
        else ModelBucket(
            f"{prefix}-models",
            settings.bucket.name,
            common,
            machines=permissions.machine_roles(settings.account, settings.environment),
            publishers=settings.bucket.publishers,
        ).bucket_name
    )
    return _Place(
        prefix=prefix,
        tags=common,
        network_id=network_id,
        subnet_ids=subnet_ids,
        firewall=Firewall(
            prefix,
            FirewallArgs(
                network_id=network_id,
                client_networks=clients,
                routers=routers,
                node_exporter=settings.machines.node_exporter_image is not None,
                tags=common,
            ),
        ),
        fabrics=_fabrics(settings, prefix, network_id, common),
        bucket=bucket,
    )


def _fabrics(
    settings: Settings, prefix: str, network_id: pulumi.Input[str], common: Mapping[str, str]
) -> dict[str, Fabric]:
    """Return the fabrics by pool name. The first keeps the security group of release 0.1, which all pools shared,
    because existing instances are in it.
    """
    made: dict[str, Fabric] = {}
    for pool in settings.pools:
        if pool.network == "efa":
            before = () if made else (pulumi.Alias(name=f"{prefix}-fabric"),)
            opts = pulumi.ResourceOptions(aliases=before)
            made[pool.name] = Fabric(f"{prefix}-fabric-{pool.name}", network_id, common, opts)
    return made


def _template(settings: Settings, place: _Place) -> Template:
    identity = MachineIdentity(
        permissions.role_name(settings.environment, MachineRole.INSTANCE),
        permissions.of_instances(
            bucket=settings.bucket.name,
            region=settings.region,
            account=settings.account,
            environment=settings.environment,
            engine_key=settings.engine_key,
        ),
        place.tags,
    )
    return Template(
        image=settings.machines.image,
        instance_profile=identity.profile,
        security_group=place.firewall.instances,
        disk=Disk(
            gib=settings.machines.disk_gib,
            iops=settings.machines.disk_iops,
            mib_per_second=settings.machines.disk_mib_per_second,
        ),
    )


def _pool(  # noqa: PLR0913
    settings: Settings,
    pool: PoolSettings,
    template: Template,
    place: _Place,
    agent: AgentFile,
    uploaded: pulumi.Resource,
) -> GpuPool:
    def script(capacity_type: CapacityType) -> str:
        return user_data.render(pools.instance_settings(settings, pool, capacity_type), agent.sha256)

    return GpuPool(
        pool.name,
        GpuPoolArgs(
            owned=pools.owned(settings, pool),
            capacity=pools.capacity(settings, pool),
            template=replace(template, image=pools.machine_image(settings, pool)),
            user_data=script,
            subnet_ids=place.subnet_ids,
            drain_deadline=pool.drain_deadline,
            fabric_group=place.fabrics[pool.name].group if pool.name in place.fabrics else None,
            adopted=pool.adopt,
            after=(uploaded,),
        ),
    )


def _control(settings: Settings, control: ControlHostSettings, place: _Place) -> Routers | None:
    """Declare the control host and separate routers. None: the control host is the router."""
    queue = f"{place.prefix}-notices"
    notices = Notices(queue, place.tags)
    sessions = permissions.of_sessions(region=settings.region, account=settings.account)
    orphans = permissions.of_orphans(
        region=settings.region,
        account=settings.account,
        environment=settings.environment,
        rules=settings.orphans,
    )
    rights = permissions.of_control(
        bucket=settings.bucket.name,
        region=settings.region,
        account=settings.account,
        environment=settings.environment,
        # composed here, so that the policy pack can check the permissions before any resource exists
        notices=f"arn:aws:sqs:{settings.region}:{settings.account}:{queue}",
        secrets=pools.secrets_of_control(settings, control),
    )
    identity = MachineIdentity(
        permissions.role_name(settings.environment, MachineRole.CONTROL), (*rights, *orphans, *sessions), place.tags
    )
    machine = MachineArgs(
        image=control.image,
        machine_type=control.machine_type,
        instance_profile=identity.profile_name,
        security_group=place.firewall.control,
    )
    home = settings.zones[0]
    host = ControlHost(
        f"{place.prefix}-control",
        ControlHostArgs(
            machine=machine,
            zone=home,
            subnet_id=place.subnet_ids[home],
            network_id=place.network_id,
            domain=settings.domain,
            data_gib=control.data_gib,
            boot_data=control_data.of_host(settings, control),
            tags=place.tags,
        ),
    )
    routers = None
    if control.routers > 1:
        zones = zones_of_routers(settings.zones, control.routers)
        routers = Routers(
            f"{place.prefix}-router",
            RoutersArgs(
                machine=MachineArgs(
                    image=control.image,
                    machine_type=control.machine_type,
                    instance_profile=_router_identity(settings, place).profile_name,
                    security_group=place.firewall.routers,
                ),
                subnet_ids={zone: place.subnet_ids[zone] for zone in zones},
                network_id=place.network_id,
                domain=settings.domain,
                domain_id=host.domain_id,
                boot_data=control_data.of_router(settings, control),
                tags=place.tags,
            ),
        )
    pulumi.export("notices_url", notices.queue_url)
    return routers


def _router_identity(settings: Settings, place: _Place) -> MachineIdentity:
    rights = permissions.of_routers(
        bucket=settings.bucket.name,
        region=settings.region,
        account=settings.account,
        engine_key=settings.engine_key,
    )
    sessions = permissions.of_sessions(region=settings.region, account=settings.account)
    return MachineIdentity(
        permissions.role_name(settings.environment, MachineRole.ROUTER), (*rights, *sessions), place.tags
    )


def _publish(settings: Settings, place: _Place, made: Mapping[str, GpuPool], routers: Routers | None) -> None:
    groups = pulumi.Output.all(**{name: pool.groups for name, pool in made.items()})
    came_from = origin(ROOT, pulumi.get_project(), pulumi.get_stack())
    bucket = pools.bucket_url(settings)
    machines: pulumi.Input[list[str]] = [] if routers is None else routers.machines
    text = pulumi.Output.all(groups, machines).apply(
        lambda found: describe(settings, found[0], bucket, came_from, found[1])
    )
    put_text("fleet-document", place.bucket, PATH_IN_BUCKET, text, "application/json")
    pulumi.export("fleet_url", f"{bucket}/{PATH_IN_BUCKET}")
    pulumi.export("groups", groups.apply(lambda found: {name: [g.name for g in gs] for name, gs in found.items()}))
