"""The settings of one environment, typed and strict. `reading` reads them from a settings file."""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings import ENVIRONMENT_NAME
from gpufleet.settings.document import Notify, Objectives
from gpufleet.settings.document.alerts import AlertsEntry
from gpufleet.settings.document.fields import Duration, Strict
from gpufleet.settings.document.money import Budget, Carbon, Commitments, PartBudget, PriceOverride
from gpufleet.settings.document.orders import OrderKeys
from gpufleet.settings.document.watchdogs import OrphanRule, Watchdogs
from gpufleet.settings.expected import text_form

Count = Annotated[int, Field(ge=0, le=10_000, strict=True)]
"""A number of instances. The limit is above real fleets and below most typing errors."""
Instances = Annotated[int, Field(ge=1, le=10_000, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]
EnvironmentName = Annotated[
    str,
    text_form(
        f"^({ENVIRONMENT_NAME})$",
        "up to 16 lowercase letters, digits and '-', beginning with a letter and not ending with '-'",
    ),
]
PoolName = Annotated[
    str,
    text_form(
        r"^([a-z]|[a-z][a-z0-9-]{0,18}[a-z0-9])$",
        "up to 20 lowercase letters, digits and '-', beginning with a letter and not ending with '-'",
    ),
]
"""Short, because both clouds' resource names extend it and are limited to 63 characters."""
Owner = Annotated[
    str,
    text_form(r"^[a-z][a-z0-9_-]{0,62}$", "up to 63 lowercase letters, digits, '_' and '-', beginning with a letter"),
]
"""Lower case, because it is a label value on Google Cloud."""
Zone = Annotated[
    str, text_form(r"^[a-z]+-[a-z]+(-[a-z]+)?-?\d+-?[a-z]$", "a zone such as us-east-1a or us-central1-a")
]
MachineType = Annotated[
    str, text_form(r"^[a-z0-9][a-z0-9.-]+$", "a machine type such as g6e.xlarge or g2-standard-12")
]
Image = Annotated[
    str,
    text_form(
        r"^[a-z0-9][a-z0-9./_:-]*@sha256:[0-9a-f]{64}$",
        "an image pinned by digest: REGISTRY/NAME@sha256:… with 64 hexadecimal digits",
    ),
]
"""A container image, pinned by digest."""
NonBlank = Annotated[str, text_form(r"\S", "text that is not blank")]
"""Text that is not blank."""
MachineTypes = Annotated[tuple[MachineType, ...], Field(min_length=1)]
Zones = Annotated[tuple[Zone, ...], Field(min_length=1)]
Publisher = Annotated[
    str,
    text_form(
        r"^arn:aws:iam::\d{12}:(role|user)/[A-Za-z0-9_+=,.@/-][A-Za-z0-9_+=,.@/*-]*$",
        "the ARN of a role or user, such as arn:aws:iam::111122223333:role/publisher",
    ),
]
"""ARN of a role or user in one account; its name must not start with `*`."""
SecretVariable = Annotated[
    str, text_form(r"^GPUFLEET_[A-Z0-9_]{1,60}$", "a variable whose name begins with GPUFLEET_")
]
SecretName = Annotated[
    str,
    text_form(
        r"^/?[A-Za-z0-9_][A-Za-z0-9_./-]{0,500}$", "the name of a secret: letters, digits, '_', '.', '/' and '-'"
    ),
]
GroupKey = Annotated[str, text_form(r"^(on-demand|spot-[a-z0-9-]+)$", "on-demand, or spot- and a zone")]
GroupName = Annotated[
    str,
    text_form(
        r"^[^:\s]([^:\n]{0,253}[^:\s])?$",
        "the name of a group: up to 255 characters without ':', and no space at its ends",
    ),
]


class MadeNetwork(Strict):
    """A private network that the program creates for this environment."""

    kind: Literal["made"]
    cidr: str
    zone_prefix: Annotated[int, Field(ge=16, le=28, strict=True)] = 20
    """Prefix length of each zone's subnet."""
    internet: Literal["none", "nat"] = "none"
    """`nat`: one NAT gateway for all zones. `none`: images and packages come from the cloud's own registries."""
    private_services: tuple[str, ...] = ()
    """AWS: services with an endpoint inside the network, such as `ssm` and `ecr.dkr`. Google Cloud needs none."""


class GivenNetwork(Strict):
    """An existing private network, which the program uses and does not change."""

    kind: Literal["given"]
    id: str
    cidr: str
    subnets: Annotated[dict[Zone, str], Field(min_length=1)]
    """Zone -> private subnet."""


class Bucket(Strict):
    """The bucket that stores models, node agents and the fleet document."""

    name: Annotated[
        str,
        text_form(
            r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$",
            "3 to 63 lowercase letters, digits and '-', with a letter or digit at both ends",
        ),
    ]
    existing: Annotated[bool, Field(strict=True)] = False
    """True: created outside this program and used unchanged. False: created by the program, and protected."""
    publishers: tuple[Publisher, ...] = ()
    """AWS: ARNs of the only roles and users that may write objects that machines trust (fleet document, models,
    approvals, agents, software of the control host); `*` is a wildcard. The role that runs `pulumi up` must be one of
    them. Absent: all principals of the account with the permission. Machines never may write them."""


class ModelSettings(Strict):
    """A model that pools can serve. Its files are stored in the bucket under `models/<name>`; `weights_gib` is the
    size of the weights in GiB."""

    name: PoolName
    source: str
    """Source of its safetensors: `hf://org/name@revision`, `s3://…` or `gs://…`."""
    weights_gib: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False, strict=True)]


class Engine(Strict):
    """The inference engine of a pool: container image, arguments and environment variables."""

    kind: Annotated[str, text_form(r"^[a-z][a-z0-9_]{0,30}$", "the name of an engine, such as vllm")] = "vllm"
    """A name of `gpufleet engines list` that the fleet starts."""
    image: Image
    version: str | None = None
    """Release of the engine in the image, for example `0.16.0`: change both together. Required for engines that do
    not report it."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str])
    start_limit: Duration = timedelta(minutes=15)
    """How long the engine may be unhealthy, after its start or later. After that, a revision switch is rolled back,
    and a booting instance fails."""


class CapacityBlock(Strict):
    """The period of a purchased Capacity Block. AWS terminates instances 30 minutes before `ends`."""

    starts: AwareDatetime
    ends: AwareDatetime


class Reserved(Strict):
    """`count` prepaid instances of one machine type in one zone, with an end (`ends`) or a review (`review_by`)."""

    zone: Zone
    machine_type: MachineType
    count: Instances
    existing: str | None = None
    """Id of an existing reservation; absent: the program creates one."""
    block: CapacityBlock | None = None
    """Present: `existing` is a Capacity Block; the spot watchdog uses it within this period."""
    ends: date | None = None
    review_by: date | None = None


class Spot(Strict):
    """Spot capacity, from any of these zones and machine types."""

    zones: Zones
    machine_types: MachineTypes


class OnDemand(Strict):
    """On-demand capacity, up to `max` instances: the fallback for missing spot; without spot, the main capacity."""

    max: Instances
    machine_types: MachineTypes
    zones: tuple[Zone, ...] = ()
    """Empty: all zones of the environment."""


class FlexStart(Strict):
    """Flex-start capacity of Google Cloud, up to `max` instances: a fallback for missing spot instead of on-demand.
    Requests wait until capacity is available. It is cheaper than on-demand on A2 and newer machines. `run` is a
    duration from 10m to 7d.
    """

    max: Instances
    machine_type: MachineType
    zone: Zone
    run: Duration
    """How long an instance may run, 10m to 7d. It is replaced and drained before Google terminates it."""


class Capacity(Strict):
    """How the pool's instances are bought. An absent key means that this kind of capacity is not bought."""

    reserved: tuple[Reserved, ...] = ()
    spot: Spot | None = None
    on_demand: OnDemand | None = None
    flex_start: FlexStart | None = None

    @property
    def fallback(self) -> OnDemand | FlexStart | None:
        """The capacity that replaces missing spot; without spot, the main capacity of the pool."""
        return self.on_demand or self.flex_start

    @property
    def machine_types(self) -> tuple[str, ...]:
        """All machine types, each once, in the order of the settings."""
        return tuple(dict.fromkeys(name for _, _, name in self.machine_type_fields()))

    def machine_type_fields(self) -> Iterator[tuple[str, CapacityType, str]]:
        """Yield each field that names a machine type: its path below `capacity`, the capacity type, the name."""
        for index, reserved in enumerate(self.reserved):
            yield f"reserved.{index}.machine_type", CapacityType.RESERVED, reserved.machine_type
        for key, kind, part in (
            ("spot", CapacityType.SPOT, self.spot),
            ("on_demand", CapacityType.ON_DEMAND, self.on_demand),
        ):
            for index, name in enumerate(part.machine_types if part else ()):
                yield f"{key}.machine_types.{index}", kind, name
        if self.flex_start:
            yield "flex_start.machine_type", CapacityType.FLEX_START, self.flex_start.machine_type


class Slices(Strict):
    """How the machine image divides each GPU of a pool. The program does not divide GPUs and starts one engine per
    instance: the setting is for prices and checks, and was not tried on hardware."""

    kind: Literal["mig", "time_slicing", "mps"]
    profile: str | None = None
    """MIG: the profile of all instances of a GPU, for example `1g.10gb`."""
    replicas: Annotated[int, Field(ge=2)] | None = None
    """Time-slicing and MPS: the number of users of each GPU."""


class PoolSettings(Strict):
    """A pool: identical replicas of one model. `target`, `spare`, `min` and `max` are numbers of instances;
    `drain_deadline` is a duration such as `90s`.
    """

    name: PoolName
    model: str
    served_name: str | None = None
    """Model name that clients request; absent: the model's name."""
    adapters: dict[str, PoolName] = Field(default_factory=dict[str, str])
    """LoRA adapters: the model name that clients request -> the adapter's name in `models`. SGLang selects an adapter
    by a name such as `chat:sql`: the served name, a colon, and the adapter's own name."""
    engine: Engine
    owner: Owner
    team_split: Literal["engine-seconds"] | None = None
    """How the pool's cost is split by team; absent: the owner gets all of it."""
    target: Count
    spare: Count = 0
    min: Count
    max: Instances
    capacity: Capacity
    adopt: dict[GroupKey, GroupName] = Field(default_factory=dict[str, str])
    """AWS: a group of the pool (`on-demand` or `spot-<zone>`) -> name of the existing Auto Scaling group that takes
    its place. `gpufleet import` writes it. It must stay: without it, the next `pulumi up` replaces the group."""
    drain_deadline: Duration
    network: Literal["standard", "efa"] = "standard"
    """AWS: `efa` adds EFA interfaces and a cluster placement group, for engines that span machines."""
    watchdogs: Watchdogs
    objectives: Objectives = Objectives()
    slices: Slices | None = None
    """Absent: GPUs are not divided."""


class AcceleratorMachines(Strict):
    """Instances whose machine types have another kind of accelerator than NVIDIA GPUs. Not tried on hardware."""

    image: str | None = None
    """Machine image with the driver of that kind, in the form of `machines.image`. Absent: `machines.image`."""
    exporter_image: Image | None = None
    """Image of the kind's exporter. AMD: device-metrics-exporter 1.5 or later; Neuron: neuron-monitor. TPUs need
    none: the node agent serves their metrics."""


class Machines(Strict):
    """Machine image, exporters and root disk of every GPU instance of the environment.

    The disk has `disk_gib` GiB, `disk_iops` operations per second and `disk_mib_per_second` MiB per second.
    """

    image: str
    """Machine image: an AMI id or `resolve:ssm:<parameter>:<version>` on AWS, an image path on Google Cloud."""
    dcgm_image: Image
    """Image of dcgm-exporter, for instances with NVIDIA GPUs."""
    accelerators: dict[AcceleratorKind, AcceleratorMachines] = Field(
        default_factory=dict[AcceleratorKind, AcceleratorMachines]
    )
    """Kind of accelerator (`amd`, `neuron` or `tpu`) -> what its instances need."""
    node_exporter_image: Image | None = None
    """Present: instances also run the node exporter on port 9100 (metrics of the operating system)."""
    gate_image: Image | None = None
    """HAProxy 2.6 or later. It runs on each instance in front of an engine that cannot protect itself (gate in
    docs/reference/engines.md). Required if a pool has one."""
    disk_gib: Positive = 100
    disk_iops: Positive = 3000
    disk_mib_per_second: Positive = 125

    def image_of(self, kind: AcceleratorKind) -> str:
        """Return the machine image of instances with this kind of accelerator."""
        own = self.accelerators.get(kind)
        return own.image if own is not None and own.image is not None else self.image

    def images(self) -> dict[str, str]:
        """Return all machine images, by their path below `machines`."""
        own = {f"accelerators.{kind}.image": one.image for kind, one in self.accelerators.items()}
        return {"image": self.image, **{path: image for path, image in own.items() if image is not None}}


class ControlHostSettings(Strict):
    """The machine that runs the watchdogs, Prometheus and the router. Absent: they run elsewhere.

    `data_gib` is the size of its volume for ledger and metrics in GiB; `routers` is a number of machines.
    """

    machine_type: MachineType
    image: str
    data_gib: Positive = 50
    """Size of the volume for ledger and metrics; it outlives the machine."""
    routers: Positive = 1
    """1: on the control host. More: dedicated machines, each in its own zone, behind an internal load balancer."""
    bundle: Annotated[str, text_form(r"^[0-9a-f]{64}$", "a sha256 digest: 64 hexadecimal digits")] | None = None
    """Digest of the machine's software, as `gpufleet bundle` prints it. Absent: the machine starts without software.
    A new digest here creates a new machine; `gpufleet upgrade` updates the running one."""
    secrets: dict[SecretVariable, SecretName] = Field(default_factory=dict[str, str])
    """Environment variable of the services (such as `GPUFLEET_SLACK_TOKEN`) -> name of the secret with its value: an
    SSM parameter or a secret of Secret Manager. Read at boot with the host's own role."""
    client_networks: tuple[str, ...] = ()
    """CIDRs that may send requests to the router; never the whole internet."""


ResourceType = Annotated[
    str,
    text_form(r"^[a-z][a-z0-9-]*:[A-Za-z0-9/_.-]*:[A-Za-z0-9]+$", "a resource type such as aws:s3/bucketV2:BucketV2"),
]
"""A Pulumi resource type, as in URNs: `aws:ec2/instance:Instance`."""


class PolicyException(Strict):
    """An exception from a rule of the policy pack for one resource, with its owner and reason. It ends on the day
    `until`."""

    rule: NonBlank
    resource: NonBlank
    """Name of the resource in the program; `*`: all resources, if the rule allows that."""
    type: ResourceType | None = None
    """Type of the resource; absent: all types, if the rule allows that."""
    owner: NonBlank
    reason: NonBlank
    until: date


class Policies(Strict):
    """Requirements of this environment for the policy pack, in addition to its rules."""

    machine_types: tuple[MachineType, ...] | None = None
    """Allowed GPU machine types; absent: all."""
    exceptions: tuple[PolicyException, ...] = ()


class Settings(Strict):
    """One environment: in one region of one cloud."""

    cloud: Cloud
    environment: EnvironmentName
    region: str
    """Read from the cloud's own key of the settings file."""
    account: str
    """AWS account id or Google Cloud project id."""
    shared_project: Annotated[bool, Field(strict=True)] = False
    """Google Cloud: whether the project contains other environments, too. Each control host can then resize the
    groups of all of them, because no IAM condition limits that permission (docs/security.md)."""
    zones: Zones
    network: Annotated[MadeNetwork | GivenNetwork, Field(discriminator="kind")]
    bucket: Bucket
    engine_key: str
    """Name of the secret with the API key that engines require: an SSM parameter or a secret of Secret Manager. GPU
    instances and routers read it."""
    orders: OrderKeys
    """Keys of orders to node agents; the control host reads the private key."""
    machines: Machines
    models: Annotated[tuple[ModelSettings, ...], Field(min_length=1)]
    pools: Annotated[tuple[PoolSettings, ...], Field(min_length=1)]
    budget: Budget | None = None
    budgets: tuple[PartBudget, ...] = ()
    """Budgets of pools and teams, in addition to the environment's."""
    notify: Notify | None = None
    orphans: tuple[OrphanRule, ...] = ()
    """Rules for GPU instances of the account outside all pools; absent: they are only listed."""
    prices: tuple[PriceOverride, ...] = ()
    commitments: Commitments = Commitments()
    carbon: Carbon | None = None
    alerts: AlertsEntry = AlertsEntry()
    """Alert thresholds that differ from the defaults."""
    control: ControlHostSettings | None = None
    policies: Policies = Policies()
    prometheus_url: str | None = None
    """Absent: on the control host. The same applies to `ledger_url` and `router_url`."""
    ledger_url: str | None = None
    router_url: str | None = None

    @property
    def domain(self) -> str:
        """Private DNS zone of the environment."""
        return f"{self.environment}.gpu-fleet.internal"
