"""The Pulumi program for Google Cloud."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pulumi

from components.gcp import permissions
from components.gcp.bucket import ModelBucket, put_file, put_text
from components.gcp.control_host import ControlHost, ControlHostArgs, MachineArgs, Routers, RoutersArgs
from components.gcp.firewall import Firewall, FirewallArgs
from components.gcp.gpu_pool import GpuPool, GpuPoolArgs, instance_prefix, labels
from components.gcp.identities import MachineIdentity, MachineIdentityArgs, OnInstances
from components.gcp.network import Network, NetworkArgs
from components.gcp.templates import Disk, Template
from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.domain.policies import OrphanAction
from gpufleet.settings.document import PATH_IN_BUCKET
from gpufleet.settings.environment import ControlHostSettings, MadeNetwork, PoolSettings, Settings
from serving import user_data
from stacks import control_data, pools
from stacks.agent import ROOT, AgentFile, agent_file
from stacks.document import describe
from stacks.origin import origin


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The network and the service accounts of the environment."""

    prefix: str
    labels: Mapping[str, str]
    network_id: pulumi.Input[str]
    subnet: pulumi.Input[str]
    bucket: pulumi.Input[str]
    instances: MachineIdentity
    control: MachineIdentity
    routers: MachineIdentity | None
    """None: the control host is the router."""
    firewall: Firewall


def deploy(settings: Settings) -> None:
    """Declare the environment and write its fleet document."""
    place = _place(settings)
    agent = agent_file()
    uploaded = put_file("agent", place.bucket, user_data.archive_key(agent.sha256), agent.path)
    template = Template(
        image=settings.machines.image,
        service_account=place.instances.email,
        subnet=place.subnet,
        region=settings.region,
        disk=Disk(gib=settings.machines.disk_gib),
    )
    made = {pool.name: _pool(settings, pool, template, agent, uploaded) for pool in settings.pools}
    routers = None if settings.control is None else _control(settings, settings.control, place)
    _publish(settings, place, made, routers)


def _place(settings: Settings) -> _Place:
    prefix = f"gpu-fleet-{settings.environment}"
    common = labels({tags.ENVIRONMENT: settings.environment})
    given = settings.network
    if isinstance(given, MadeNetwork):
        made = Network(
            prefix, NetworkArgs(region=settings.region, cidr=given.cidr, nat_gateway=given.internet == "nat")
        )
        network_id, subnet = made.id, made.subnet_id
    else:
        # one subnet spans all zones of the region, whatever zone the settings list it under
        network_id, subnet = given.id, next(iter(given.subnets.values()))
    bucket = (
        settings.bucket.name
        if settings.bucket.existing
        else ModelBucket(f"{prefix}-models", settings.bucket.name, settings.region, common).bucket_name
    )
    # names of machines outside every pool follow no pattern
    beyond = bool(settings.orphans)
    stops = any(rule.action is OrphanAction.STOP for rule in settings.orphans)
    instances = _identity(
        settings,
        f"{prefix}-gpu",
        "GPU instances of gpu-fleet",
        bucket,
        permissions.INSTANCE_ON_BUCKET,
        # no permission in Compute Engine: IAM cannot restrict a role to the calling instance
        (),
        (settings.engine_key,),
    )
    control = _identity(
        settings,
        f"{prefix}-ctl",
        "Control host of gpu-fleet",
        bucket,
        permissions.CONTROL_ON_BUCKET,
        (*permissions.CONTROL, *(permissions.MARKS if beyond else ()), *(permissions.STOP if stops else ())),
        pools.secrets_of_control(settings, settings.control),
        None if beyond else OnInstances(permissions=permissions.MARKS, prefix=instance_prefix(settings.environment)),
    )
    routers = None
    if settings.control is not None and settings.control.routers > 1:
        routers = _identity(
            settings,
            f"{prefix}-rtr",
            "Routers of gpu-fleet",
            bucket,
            permissions.ROUTER_ON_BUCKET,
            permissions.ROUTER,
            (settings.engine_key,),
        )
    firewall = Firewall(
        prefix,
        FirewallArgs(
            network_id=network_id,
            instance_account=instances.email,
            control_account=control.email,
            router_account=routers.email if routers else None,
            client_networks=settings.control.client_networks if settings.control else (),
            node_exporter=settings.machines.node_exporter_image is not None,
        ),
    )
    return _Place(
        prefix=prefix,
        labels=common,
        network_id=network_id,
        subnet=subnet,
        bucket=bucket,
        instances=instances,
        control=control,
        routers=routers,
        firewall=firewall,
    )


def _identity(  # noqa: PLR0913
    settings: Settings,
    name: str,
    what: str,
    bucket: pulumi.Input[str],
    on_bucket: tuple[permissions.OnBucket, ...],
    single: tuple[str, ...],
    secrets: tuple[str, ...],
    on_instances: OnInstances | None = None,
) -> MachineIdentity:
    return MachineIdentity(
        name,
        MachineIdentityArgs(
            account_id=name,
            what=what,
            project=settings.account,
            bucket=bucket,
            bucket_name=settings.bucket.name,
            on_bucket=on_bucket,
            secrets=secrets,
            permissions=single,
            on_instances=on_instances,
        ),
    )


def _pool(
    settings: Settings, pool: PoolSettings, template: Template, agent: AgentFile, uploaded: pulumi.Resource
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
            drain_deadline=pool.drain_deadline,
            after=(uploaded,),
        ),
    )


def _control(settings: Settings, control: ControlHostSettings, place: _Place) -> Routers | None:
    """Declare the control host and separate routers. None: the control host is the router."""
    machine = MachineArgs(
        image=control.image,
        machine_type=control.machine_type,
        service_account=place.control.email,
        subnet=place.subnet,
    )
    host = ControlHost(
        f"{place.prefix}-control",
        ControlHostArgs(
            machine=machine,
            zone=settings.zones[0],
            network_id=place.network_id,
            domain=settings.domain,
            data_gib=control.data_gib,
            boot_data=control_data.of_host(settings, control),
            labels=place.labels,
        ),
    )
    if place.routers is None:
        return None
    return Routers(
        f"{place.prefix}-router",
        RoutersArgs(
            machine=MachineArgs(
                image=control.image,
                machine_type=control.machine_type,
                service_account=place.routers.email,
                subnet=place.subnet,
            ),
            zones=settings.zones[: control.routers],
            region=settings.region,
            network_id=place.network_id,
            domain=settings.domain,
            domain_id=host.domain_id,
            boot_data=control_data.of_router(settings, control),
            labels=place.labels,
            after=(place.firewall, place.routers),
        ),
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
