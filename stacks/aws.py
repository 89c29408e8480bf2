"""The AWS program."""

from collections.abc import Mapping

import pulumi

from components.aws import permissions
from components.aws.bucket import put_file, put_text
from components.aws.gpu_pool import GpuPool, GpuPoolArgs
from components.aws.identities import MachineIdentity
from components.aws.network import Firewall, Network, NetworkArgs
from components.aws.templates import Disk, Template
from fleet import tags
from fleet.document import PATH_IN_BUCKET
from fleet.model import CapacityType
from serving import user_data
from stacks import pools
from stacks.agent import ROOT, AgentFile, agent_file
from stacks.document import describe
from stacks.origin import origin
from stacks.settings import MadeNetwork, Pool, Settings


def deploy(settings: Settings) -> None:
    """Declare the environment and write its fleet document."""
    prefix = f"gpu-fleet-{settings.environment}"
    common = {tags.ENVIRONMENT: settings.environment}
    network_id, subnet_ids = _network(prefix, settings, common)
    firewall = Firewall(prefix, network_id, common)
    agent = agent_file()
    uploaded = put_file("agent", settings.bucket.name, user_data.archive_key(agent.sha256), agent.path)
    identity = MachineIdentity(
        f"{prefix}-instance",
        permissions.of_instances(
            bucket=settings.bucket.name,
            region=settings.region,
            account=settings.account,
            environment=settings.environment,
            agent_token=settings.agent_token,
        ),
        common,
    )
    template = Template(
        image=settings.machines.image,
        instance_profile=identity.profile,
        security_group=firewall.instances,
        disk=Disk(
            gib=settings.machines.disk_gib,
            iops=settings.machines.disk_iops,
            mib_per_second=settings.machines.disk_mib_per_second,
        ),
    )
    made = {
        pool.name: _pool(settings, pool, template, subnet_ids, agent, uploaded)
        for pool in settings.pools
    }
    _publish(settings, made)


def _network(
    prefix: str, settings: Settings, common: Mapping[str, str]
) -> tuple[pulumi.Input[str], Mapping[str, pulumi.Input[str]]]:
    given = settings.network
    if not isinstance(given, MadeNetwork):
        return given.id, given.subnets
    made = Network(
        prefix,
        NetworkArgs(
            region=settings.region,
            cidr=given.cidr,
            zones=settings.zones,
            zone_prefix=given.zone_prefix,
            tags=common,
        ),
    )
    return made.id, made.subnet_ids


def _pool(  # noqa: PLR0913
    settings: Settings,
    pool: Pool,
    template: Template,
    subnet_ids: Mapping[str, pulumi.Input[str]],
    agent: AgentFile,
    uploaded: pulumi.Resource,
) -> GpuPool:
    def script(capacity_type: CapacityType) -> str:
        told = pools.instance_settings(settings, pool, capacity_type, f"ssm:{settings.agent_token}")
        return user_data.render(told, agent.sha256)

    return GpuPool(
        pool.name,
        GpuPoolArgs(
            owned=pools.owned(settings, pool),
            capacity=pools.capacity(settings, pool),
            template=template,
            user_data=script,
            subnet_ids=subnet_ids,
            drain_deadline=pool.drain_deadline,
            after=(uploaded,),
        ),
    )


def _publish(settings: Settings, made: Mapping[str, GpuPool]) -> None:
    groups = pulumi.Output.all(**{name: pool.groups for name, pool in made.items()})
    came_from = origin(ROOT, pulumi.get_project(), pulumi.get_stack())
    bucket = pools.bucket_url(settings)
    text = groups.apply(lambda found: describe(settings, found, bucket, came_from))
    put_text("fleet-document", settings.bucket.name, PATH_IN_BUCKET, text, "application/json")
    pulumi.export("fleet_url", f"{bucket}/{PATH_IN_BUCKET}")
    pulumi.export("groups", groups.apply(lambda found: {name: [g.name for g in gs] for name, gs in found.items()}))
