"""A declared resource in the form that rules use: plain values, with UNKNOWN for values that a preview does not
know.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

from gpufleet.domain.parsed import is_list, is_map


class _Unknown:
    """A value that only `pulumi up` knows. Rules check it then and never guess it."""

    def __repr__(self) -> str:
        return "(known after up)"


UNKNOWN: Final = _Unknown()


LAUNCH_TEMPLATE: Final = "aws:ec2/launchTemplate:LaunchTemplate"
AWS_INSTANCE: Final = "aws:ec2/instance:Instance"
AWS_GROUP: Final = "aws:autoscaling/group:Group"
SECURITY_GROUP: Final = "aws:ec2/securityGroup:SecurityGroup"
SECURITY_GROUPS: Final = frozenset({SECURITY_GROUP, "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"})
ROLE: Final = "aws:iam/role:Role"
PROFILE: Final = "aws:iam/instanceProfile:InstanceProfile"
ACCOUNT: Final = "gcp:serviceaccount/account:Account"
LAUNCH_CONFIGURATION: Final = "aws:ec2/launchConfiguration:LaunchConfiguration"
RUNS_INSTANCES: Final = frozenset(
    {
        LAUNCH_TEMPLATE,
        AWS_INSTANCE,
        "aws:ec2/spotInstanceRequest:SpotInstanceRequest",
        LAUNCH_CONFIGURATION,
    }
)
"""AWS types that start instances. They share user data, metadata options and an instance type."""
GCP_TEMPLATES: Final = frozenset(
    {
        "gcp:compute/instanceTemplate:InstanceTemplate",
        "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
        "gcp:compute/instance:Instance",
        "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        "gcp:compute/instanceFromMachineImage:InstanceFromMachineImage",
    }
)
GCP_GROUPS: Final = frozenset(
    {
        "gcp:compute/instanceGroupManager:InstanceGroupManager",
        "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager",
    }
)
GCP_COPIES: Final = frozenset(
    {
        "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        "gcp:compute/instanceFromMachineImage:InstanceFromMachineImage",
    }
)
"""Google Cloud types whose instances copy unset properties from another resource."""
FLEETS: Final = frozenset({"aws:ec2/fleet:Fleet", "aws:ec2/spotFleetRequest:SpotFleetRequest"})
"""AWS types that start instances from templates and choose the machine types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of the plan or of the state. `props` use the provider's camelCase names."""

    type: str
    name: str
    props: Mapping[str, Any] = field(default_factory=dict[str, Any])
    urn: str = ""
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """URNs from which each property takes its value."""
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The last properties that the cloud reported, if `props` contain only the program's inputs."""
    hidden: tuple[str, ...] = ()
    """Properties whose values a preview hides as secrets. Their value is UNKNOWN."""

    def at(self, *path: str | int) -> Any:
        """Return the value at a path. None: not set. UNKNOWN: a preview does not know it."""
        value: Any = self.props
        for part in path:
            if value is UNKNOWN:
                return UNKNOWN
            value = _child(value, part)
            if value is None:
                return None
        return value

    def each(self, *path: str | int) -> Iterator[Mapping[str, Any]]:
        """Yield the maps of a list (or the single map) at a path. Unknown maps are omitted."""
        value = self.at(*path)
        for item in value if is_list(value) else [value]:
            if is_map(item):
                yield item

    def parts(self) -> "Iterator[Resource]":
        """Yield the resource itself, and the launch specifications of a spot fleet without a template."""
        yield self
        if self.type in FLEETS:
            for specification in self.each("launchSpecifications"):
                yield replace(self, type=LAUNCH_CONFIGURATION, props=specification)


def _child(value: Any, part: str | int) -> Any:
    if is_map(value):
        # an index into a map finds nothing, because its keys are strings
        return value.get(part) if isinstance(part, str) else None
    if is_list(value) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def known(value: Any) -> bool:
    """Return whether a value is set and a preview knows it."""
    return value is not None and value is not UNKNOWN


def is_true(value: Any) -> bool:
    """Return whether a value is true. Providers represent some booleans as text."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def is_false(value: Any) -> bool:
    """Return whether a value is set to false, as a boolean or as text. An unset value is not false."""
    return value is False or (isinstance(value, str) and value.lower() == "false")


def number(value: Any) -> float | None:
    """Return a number, also from text. None if the value is not a number or not known."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


class Properties(Mapping[str, Any]):
    """The engine's properties of one resource. They are converted on access, because most rules look at few types."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._plain: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._plain:
            self._plain[key] = _read(self._given, key)
        return self._plain[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def plain(value: Any) -> Any:
    """Return the engine's property values without its proxies. Unknown values become UNKNOWN."""
    if is_map(value):
        return {key: _read(value, key) for key in value}
    if _is_sequence(value):
        return [_read(value, index) for index in range(len(value))]
    return value


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _read(container: Any, key: Any) -> Any:
    try:
        return plain(container[key])
    except _unknown_value():
        return UNKNOWN


def _unknown_value() -> type[Exception]:
    """Return the error of the engine's proxies for an unknown value. Only code that the engine runs meets it: the
    library is in the extra `pulumi`, and slow to import.
    """
    from pulumi_policy.proxy import UnknownValueError

    return UnknownValueError
