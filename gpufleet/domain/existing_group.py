"""What is known of an existing Auto Scaling group that no fleet manages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.domain.model import CapacityType


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleHook:
    """A lifecycle hook of an Auto Scaling group."""

    name: str
    transition: str
    timeout_s: int
    default_result: str = "CONTINUE"
    """What happens with an instance when the time is over."""

    def __str__(self) -> str:
        return f"{self.transition.rpartition('_')[2].lower()}, {self.timeout_s} s, then {self.default_result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTag:
    """The value of a tag of a group."""

    value: str
    at_launch: bool
    """Whether new instances get the tag, too."""

    def __str__(self) -> str:
        return f"{self.value}, also on new instances" if self.at_launch else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """An instance of a group."""

    id: str
    machine_type: str
    capacity_type: CapacityType
    state: str
    """Lifecycle state in the group, such as `InService`."""
    protected: bool = False
    """Whether a smaller size does not end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How a mixed instances policy divides on-demand and spot capacity."""

    on_demand_base: int
    on_demand_percentage: int
    on_demand_strategy: str
    spot_strategy: str
    spot_max_price: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingGroup:
    """An Auto Scaling group with its hooks, policies and instances."""

    name: str
    min: int
    max: int
    desired: int
    zones: tuple[str, ...]
    subnets: tuple[str, ...]
    networks: frozenset[str]
    """VPCs of the subnets."""
    template: str | None
    """Id and version of the launch template; None: it has a launch configuration."""
    distribution: Distribution | None
    """None: no mixed instances policy."""
    machine_types: tuple[str, ...]
    market: str = ""
    """Purchase option of the launch template: `spot`, `capacity-block`, or empty for on-demand."""
    reservation: str = ""
    """Reservation that the launch template names."""
    weighted: bool = False
    """Whether machine types have weights."""
    by_attributes: bool = False
    """Whether attributes, such as memory, choose the machine types."""
    units: str = "units"
    """Unit of its sizes: `units` are instances."""
    tags: Mapping[str, GroupTag] = field(default_factory=dict[str, GroupTag])
    suspended: tuple[str, ...] = ()
    capacity_rebalance: bool = False
    health_check: str = "EC2"
    max_lifetime_s: int = 0
    """0: no limit."""
    protects_new: bool = False
    """Whether new instances are protected from a smaller size."""
    placement_group: str = ""
    warm_pool: bool = False
    refreshing: bool = False
    """Whether an instance refresh is in progress."""
    deleting: bool = False
    hooks: Mapping[str, LifecycleHook] = field(default_factory=dict[str, LifecycleHook])
    policies: tuple[str, ...] = ()
    """Names of its scaling policies."""
    schedules: tuple[str, ...] = ()
    """Names of its scheduled actions."""
    members: tuple[GroupMember, ...] = ()
    unencrypted: tuple[str, ...] = ()
    """Unencrypted disks of its instances."""
