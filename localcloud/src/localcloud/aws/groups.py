"""Auto Scaling groups that a loop brings to their desired size; moto's groups do so within the API call."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from moto.autoscaling import urls as scaling_urls
from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeAutoScalingGroup, InstanceState
from moto.core.exceptions import ServiceException
from moto.moto_api._internal import mock_random

from localcloud.aws.instances import EmulatedInstance
from localcloud.aws.state import AwsState
from localcloud.capacity_kind import Kind
from localcloud.documents import inner, items

if TYPE_CHECKING:
    from localcloud.aws.refresh import Refresh

LAUNCHING: Final = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING: Final = "autoscaling:EC2_INSTANCE_TERMINATING"
_ACTIVITIES_KEPT: Final = timedelta(weeks=6)
_ANSWERS: Final = timedelta(seconds=9)
"""From a change of the desired size to the first launch or termination (recorded: 1 to 18 s)."""
_SUSPENDS_AFTER: Final = timedelta(hours=24)
"""How long launches of a group may fail before Auto Scaling suspends them."""


class ResourceInUse(ServiceException):
    """DeleteAutoScalingGroup of a group that still has instances."""

    code = "ResourceInUse"


class AlreadyExists(ServiceException):
    """CreateAutoScalingGroup with a name that exists."""

    code = "AlreadyExists"


@dataclass(slots=True, kw_only=True)
class Activity:
    """A line of DescribeScalingActivities."""

    activity_id: str
    auto_scaling_group_name: str
    auto_scaling_group_arn: str
    description: str
    cause: str
    start_time: datetime
    end_time: datetime | None = None
    status_code: str = "InProgress"
    status_message: str | None = None
    progress: int = 0
    details: str = "{}"

    @property
    def is_over(self) -> bool:
        return self.end_time is not None

    def advance(self, code: str, progress: int) -> None:
        """Set status and progress, unless the activity has ended."""
        if not self.is_over:
            self.status_code, self.progress = code, progress

    def finish(self, at: datetime, *, code: str = "Successful", message: str = "") -> None:
        """End the activity, at a whole second. An activity that has ended does not change."""
        if self.is_over:
            return
        self.end_time, self.status_code, self.progress = at.replace(microsecond=0), code, 100
        if message:
            self.status_message = message
            self.description = f"{self.description}.  Status Reason: {message}"


class Member(InstanceState):
    """An instance of a group, with its lifecycle."""

    instance: EmulatedInstance

    def __init__(self, instance: EmulatedInstance, group: "EmulatedGroup", recipe: "Recipe") -> None:
        super().__init__(
            instance,
            lifecycle_state="Pending",
            protected_from_scale_in=group.new_instances_protected_from_scale_in,
            autoscaling_group=group,
        )
        self.template_id, self.version = recipe.template_id, recipe.version
        self._template_name = recipe.template_name
        self.wait_until: datetime | None = None
        self.in_service_since: datetime | None = None
        self.found_dead_at: datetime | None = None
        """When the health check found that the instance is terminating."""
        self.token = ""
        """The token of the lifecycle action that it waits for."""
        self.launch: Activity | None = None
        self.end: Activity | None = None

    @property
    def details(self) -> str:
        """The details of its activities, as JSON."""
        return self.launch.details if self.launch is not None else "{}"

    @property
    def launch_template(self) -> dict[str, Any] | None:
        """The template and version that it was launched from, which the group may have changed since."""
        return {
            "LaunchTemplateId": self.template_id,
            "LaunchTemplateName": self._template_name,
            "Version": str(self.version),
        }

    @property
    def counts(self) -> bool:
        """Whether it counts towards the desired size."""
        return self.lifecycle_state.startswith("Pending") or self.lifecycle_state == "InService"

    @property
    def leaving(self) -> bool:
        return self.lifecycle_state.startswith("Terminating")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a group launches: the version of its template, and the machine types in order."""

    data: Mapping[str, Any]
    template_id: str
    template_name: str
    version: int
    machine_types: Sequence[str]
    market: Kind | None
    """The kind in the template; None: on-demand, or by the mixed instances policy."""


class EmulatedGroup(FakeAutoScalingGroup):
    """A group that only stores its desired size; `localcloud.aws.reconcile` starts and terminates instances."""

    cloud_state: AwsState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.activities: list[Activity] = []
        self.acts_at: datetime | None = None
        """When it launches or terminates next; None: at once."""
        self.failures = 0
        self.failing_since: datetime | None = None
        self.replaces = 0
        """Unhealthy instances for which no replacement has been launched yet."""
        self._request = ""
        """The request that changed its size, for the cause of the next activities."""
        self._suspended: dict[str, str] = {}
        """Process -> reason."""
        self.status: str | None = None
        self.extra: dict[str, Any] = {}
        self.refreshes: list[Refresh] = []
        super().__init__(*args, **kwargs)

    @property
    def members(self) -> list[Member]:
        return [state for state in self.instance_states if isinstance(state, Member)]

    @property
    def limits(self) -> tuple[int, int]:
        return self.min_size or 0, self.max_size or 0

    def set_desired_capacity(self, new_capacity: int | None) -> None:
        """Store the desired size; nothing is started or terminated here."""
        before: int | None = vars(self).get("desired_capacity")
        how = "created an AutoScalingGroup" if before is None else "explicitly set group desired capacity"
        self.ask(how, before or 0, (self.min_size or 0) if new_capacity is None else new_capacity)

    def ask(self, how: str, before: int, wanted: int) -> None:
        """A user request for another size; the group acts on it after a delay."""
        now = self.cloud_state.now()
        self.desired_capacity = wanted
        self.acts_at = now + self.cloud_state.time_scale.shorten(_ANSWERS)
        if wanted != before:
            request = f"a user request {how} changing the desired capacity from {before} to {wanted}."
            self._request = f"At {stamp(now)} {request}"

    def cause(self, *sentences: str) -> str:
        """The cause of activities that start now: each sentence with its time."""
        return "  ".join(f"At {stamp(self.cloud_state.now())} {sentence}" for sentence in sentences)

    def cause_of_step(self, sentence: str) -> str:
        """The cause of a change of size. The user request comes first, in the first step only."""
        request, self._request = self._request, ""
        return "  ".join([*([request] if request else []), self.cause(sentence)])

    def update(self, **wanted: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Change only the fields of the request: moto drops the mixed instances policy when an update omits it."""
        self._set_azs_and_vpcs(wanted.get("availability_zones") or [], wanted.get("vpc_zone_identifier"), update=True)
        for name in ("min_size", "max_size", "health_check_type", "new_instances_protected_from_scale_in"):
            if wanted.get(name) is not None:
                setattr(self, name, wanted[name])
        if wanted.get("health_check_period") is not None:
            self.health_check_grace_period = wanted["health_check_period"]
        if wanted.get("mixed_instances_policy"):
            self.mixed_instances_policy = wanted["mixed_instances_policy"]
        elif wanted.get("launch_template") or wanted.get("launch_config_name"):
            self.mixed_instances_policy = None
        self._set_launch_configuration(
            wanted.get("launch_config_name") or "",
            wanted.get("launch_template") or {},
            mixed_instances_policy=wanted.get("mixed_instances_policy"),
        )
        self._resize(wanted.get("desired_capacity"))

    def _resize(self, desired: int | None) -> None:
        low, high = self.limits
        check_limits(low, high)
        if desired is not None:
            check_desired(desired, low, high)
        else:
            desired = min(max(self.desired_capacity or 0, low), high)
        before = self.desired_capacity or 0
        if desired != before:
            constraints = f"min: {low}, max: {high}, desired: {desired}"
            self.ask(f"update of AutoScalingGroup constraints to {constraints}", before, desired)

    @property
    def suspended_processes(self) -> list[dict[str, str]]:
        return [{"ProcessName": name, "SuspensionReason": why} for name, why in sorted(self._suspended.items())]

    @suspended_processes.setter
    def suspended_processes(self, processes: list[str]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Suspended by a user request; a process that is suspended already keeps its reason."""
        reason = f"User suspended at {stamp(self.cloud_state.now())}"
        resumes = self.is_suspended("Launch") and "Launch" not in processes
        self._suspended = {name: self._suspended.get(name, reason) for name in processes}
        if resumes:
            # launches are tried for another day
            self.failing_since, self.acts_at = None, None

    def is_suspended(self, process: str) -> bool:
        return process in self._suspended

    def suspend_launches(self) -> None:
        """Suspend `Launch` as Auto Scaling does. The text, and that only `Launch` is suspended, are assumptions."""
        reason = (
            f"Administratively suspended at {stamp(self.cloud_state.now())}: launches failed for more than 24 hours"
        )
        self._suspended = {**self._suspended, "Launch": reason}

    def note_failure(self) -> None:
        """Count a failed launch; after a day of failures, launches are suspended."""
        now = self.cloud_state.now()
        self.failures += 1
        self.failing_since = self.failing_since or now
        if now - self.failing_since >= self.cloud_state.time_scale.shorten(_SUSPENDS_AFTER):
            self.suspend_launches()

    def note_success(self) -> None:
        """Reset the failures: a launch succeeded, or none is needed."""
        self.failures, self.failing_since = 0, None

    def recipe(self) -> Recipe:
        """What the group launches now. Raises ValidationError without a launch template."""
        template = self.ec2_launch_template
        if template is None:
            raise ValidationError(f"group {self.name} has no launch template; the embedded cloud needs one")
        if template.id not in self.ec2_backend.launch_templates:
            raise ValidationError(
                "You must use a valid fully-formed launch template. The specified launch template, with template ID"
                f" {template.id}, does not exist."
            )
        version = template.get_version(self.launch_template_version)
        overrides = items(inner(self.mixed_instances_policy, "LaunchTemplate"), "Overrides")
        types = [item["InstanceType"] for item in overrides if item.get("InstanceType")]
        market = inner(version.data, "InstanceMarketOptions").get("MarketType")
        return Recipe(
            data=version.data,
            template_id=template.id,
            template_name=template.name,
            version=version.number,
            machine_types=types or [version.data.get("InstanceType") or "m1.small"],
            market=Kind.SPOT if market == "spot" else None,
        )

    def next_kind(self, recipe: Recipe) -> Kind:
        """The kind of the next launch: on-demand up to base and percentage of the policy, spot above."""
        if self.mixed_instances_policy is None:
            return recipe.market or Kind.ON_DEMAND
        mix = inner(self.mixed_instances_policy, "InstancesDistribution")
        base = int(mix.get("OnDemandBaseCapacity") or 0)
        percentage = mix.get("OnDemandPercentageAboveBaseCapacity")
        there = [member for member in self.members if member.counts]
        # an instance refresh launches replacements above the desired size
        above = max(0, max(self.desired_capacity or 0, len(there) + 1) - base)
        share = 100 if percentage is None else int(percentage)
        full_price = base + -(-above * share // 100)
        have = sum(1 for member in there if member.instance.kind is Kind.ON_DEMAND)
        return Kind.ON_DEMAND if have < full_price else Kind.SPOT

    def subnets(self) -> list[Any]:
        """Its subnets, the zone with the fewest members first."""
        if not self.vpc_zone_identifier:
            raise ValidationError(f"group {self.name} has no subnets; the embedded cloud needs VPCZoneIdentifier")
        found = self.autoscaling_backend.ec2_backend.describe_subnets(subnet_ids=self.vpc_zone_identifier.split(","))
        load = Counter(member.availability_zone for member in self.members if member.counts)
        return sorted(found, key=lambda subnet: load[subnet.availability_zone])

    def report_once(self, trouble: str) -> None:
        """Record a failed activity for an error that blocks the group, unless the last activity has the same."""
        if self.activities and self.activities[0].status_message == trouble:
            return
        now = self.cloud_state.now()
        self.record("Launching a new EC2 instance", "", now).finish(now, code="Failed", message=trouble)

    def record(self, description: str, cause: str, now: datetime, details: str = "{}") -> Activity:
        """Begin a scaling activity."""
        activity = Activity(
            activity_id=str(mock_random.uuid4()),
            auto_scaling_group_name=self.name,
            auto_scaling_group_arn=self.arn,
            description=description,
            cause=cause,
            start_time=now,
            details=details,
        )
        self.activities.insert(0, activity)
        while now - self.activities[-1].start_time > _ACTIVITIES_KEPT:
            del self.activities[-1]
        return activity


def stamp(moment: datetime) -> str:
    """A time as Auto Scaling writes it in causes and reasons."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def check_limits(low: int, high: int) -> None:
    """Raises ValidationError with Auto Scaling's message."""
    if low > high:
        raise ValidationError(f"Max bound, {high}, must be greater than or equal to min bound, {low}")


def check_desired(desired: int, low: int, high: int) -> None:
    """Raises ValidationError with Auto Scaling's message."""
    if desired > high:
        raise ValidationError(
            f"New SetDesiredCapacity value {desired} is above max value {high} for the AutoScalingGroup."
        )
    if desired < low:
        raise ValidationError(
            f"New SetDesiredCapacity value {desired} is below min value {low} for the AutoScalingGroup."
        )


class EmulatedAutoScaling(AutoScalingBackend):
    """Auto Scaling whose groups reach their size in the loop of the embedded cloud."""

    cloud_state: AwsState

    @property
    def _url_module(self) -> Any:
        # moto looks for a module `urls` next to the backend's own module; this backend uses moto's
        return scaling_urls

    def group(self, name: str) -> EmulatedGroup:
        """The group of that name. Raises ValidationError with Auto Scaling's message."""
        found = self.autoscaling_groups.get(name)
        if not isinstance(found, EmulatedGroup):
            raise ValidationError("AutoScalingGroup name not found - null")
        return found

    def groups(self) -> list[EmulatedGroup]:
        return [group for group in self.autoscaling_groups.values() if isinstance(group, EmulatedGroup)]

    def member(self, instance_id: str) -> tuple[EmulatedGroup, Member]:
        """The group that an instance belongs to. Raises ValidationError when it belongs to none."""
        for group in self.groups():
            for member in group.members:
                if member.instance.id == instance_id:
                    return group, member
        raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")

    def create_auto_scaling_group(self, *args: Any, **kwargs: Any) -> Any:
        low, high = kwargs.get("min_size") or 0, kwargs.get("max_size") or 0
        check_limits(low, high)
        if kwargs.get("desired_capacity") is not None:
            desired = kwargs["desired_capacity"]
            if not low <= desired <= high:
                raise ValidationError("Desired capacity must be between the specified min size and max size")
        if kwargs["name"] in self.autoscaling_groups:
            raise AlreadyExists(
                "AutoScalingGroup by this name already exists - A group with that name already exists"
            )
        return super().create_auto_scaling_group(*args, **kwargs)

    def set_desired_capacity(self, group_name: str, desired_capacity: int | None) -> None:
        group = self.group(group_name)
        if desired_capacity is not None:
            check_desired(desired_capacity, *group.limits)
        if desired_capacity != group.desired_capacity:
            group.set_desired_capacity(desired_capacity)

    def delete_auto_scaling_group(self, group_name: str, force: bool = False) -> None:
        """Delete at once when empty, else (forced) when the loop has ended its instances."""
        group = self.group(group_name)
        if group.members and not force:
            raise ResourceInUse(
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s)"
                " still in the group."
            )
        group.min_size = group.max_size = group.desired_capacity = 0
        group.status = "Delete in progress"
        for key in [key for key, hook in self.lifecycle_hooks.items() if hook.auto_scaling_group_name == group_name]:
            # a forced deletion drops outstanding lifecycle actions
            del self.lifecycle_hooks[key]
        for member in group.members:
            member.wait_until = self.cloud_state.now() if member.wait_until else None
        self.drop_if_empty(group)

    def drop_if_empty(self, group: EmulatedGroup) -> None:
        """The last step of a deletion."""
        if group.status == "Delete in progress" and not group.members:
            self.autoscaling_groups.pop(group.name, None)

    def notify_terminate_instances(self, instance_ids: list[str]) -> None:
        """Nothing: the loop sees for itself what has ended."""

    def detach_instances(self, group_name: str, instance_ids: list[str], should_decrement: bool) -> Any:
        group = self.group(group_name)
        if should_decrement:
            self._lower(group, len(instance_ids))
        return super().detach_instances(group_name, instance_ids, False)

    def terminate_instance(self, instance_id: str, should_decrement: bool) -> Any:
        """Begin to end one instance of a group, with or without replacement."""
        from localcloud.aws.reconcile import begin_end

        group, member = self.member(instance_id)
        before = group.desired_capacity or 0
        cause = f"instance {instance_id} was taken out of service in response to a user request"
        if should_decrement and not member.leaving:
            self._lower(group, 1)
            cause += f", shrinking the capacity from {before} to {before - 1}"
        return begin_end(self, group, member, group.cause(f"{cause}."))

    def _lower(self, group: EmulatedGroup, by: int) -> None:
        low, _ = group.limits
        desired = group.desired_capacity or 0
        if desired - by < low:
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({low}). Terminating instance without replacement will"
                " violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or"
                " lower group's min size."
            )
        group.desired_capacity = desired - by
