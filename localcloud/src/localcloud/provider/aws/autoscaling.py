"""Auto Scaling groups and lifecycle hooks.

Sizes have two writers: the program sets them at creation, watchdogs afterwards. So an update writes only the fields
that the program changed.
"""

from __future__ import annotations

from typing import Any

from localcloud.aws.sdk import ClientError
from localcloud.provider.aws.calls import first, is_absent, or_none, present
from localcloud.provider.aws.tags import tag_map
from localcloud.provider.checks import between, conflicts, one_of
from localcloud.provider.errors import Failure
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import from_answer, input_shape, to_request
from localcloud.provider.wire import UNKNOWN, Properties

_SIZES = frozenset({"desiredCapacity", "maxSize", "minSize"})
_FIELDS = _SIZES | {
    "availabilityZoneDistribution", "availabilityZones", "capacityRebalance", "capacityReservationSpecification",
    "context", "defaultCooldown", "defaultInstanceWarmup", "desiredCapacityType", "healthCheckGracePeriod",
    "healthCheckType", "instanceLifecyclePolicy", "instanceMaintenancePolicy", "launchTemplate",
    "maxInstanceLifetime", "mixedInstancesPolicy", "placementGroup", "protectFromScaleIn", "serviceLinkedRoleArn",
    "terminationPolicies", "vpcZoneIdentifiers",
}  # fmt: skip
_OWN_CALLS = frozenset({"suspendedProcesses", "tags", "targetGroupArns"})
_BEHAVIOUR = frozenset(
    {
        "forceDelete", "ignoreFailedScalingActivities", "initialLifecycleHooks", "instanceRefresh", "minElbCapacity",
        "waitForCapacityTimeout", "waitForElbCapacity",
    }
)  # fmt: skip
_CREATE_ONLY = frozenset({"targetGroupArns"})
_RENAMES = {
    "protectFromScaleIn": "NewInstancesProtectedFromScaleIn",
    "launchTemplate.id": "LaunchTemplateId",
    "launchTemplate.name": "LaunchTemplateName",
    "vpcZoneIdentifiers": "VPCZoneIdentifier",
    "targetGroupArns": "TargetGroupARNs",
    "serviceLinkedRoleArn": "ServiceLinkedRoleARN",
}
_IMPORTED: Properties = {
    "capacityRebalance": False,
    "healthCheckGracePeriod": 0,
    "healthCheckType": "",
    "launchTemplate": {"id": "", "version": ""},
    "maxInstanceLifetime": 0,
    "mixedInstancesPolicy": {
        "instancesDistribution": {
            "onDemandAllocationStrategy": "",
            "onDemandBaseCapacity": 0,
            "onDemandPercentageAboveBaseCapacity": 0,
            "spotAllocationStrategy": "",
        },
        "launchTemplate": {
            "launchTemplateSpecification": {"launchTemplateId": "", "version": ""},
            "overrides": [{"instanceType": ""}],
        },
    },
    "terminationPolicies": [""],
}
"""The form in which an import reads a group that no program has declared."""
_RESET: Properties = {
    "capacityRebalance": False,
    "context": "",
    "defaultCooldown": 300,
    "defaultInstanceWarmup": -1,
    "healthCheckGracePeriod": 0,
    "healthCheckType": "EC2",
    "instanceMaintenancePolicy": {"minHealthyPercentage": -1, "maxHealthyPercentage": -1},
    "maxInstanceLifetime": 0,
    "placementGroup": "",
    "protectFromScaleIn": False,
    "terminationPolicies": ["Default"],
}
_PROCESSES = frozenset(
    {
        "Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy", "AZRebalance", "AlarmNotification",
        "ScheduledActions", "AddToLoadBalancer", "InstanceRefresh",
    }
)  # fmt: skip
_TRANSITIONS = frozenset({"autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"})
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _sizes_in_order(given: Properties) -> list[Failure]:
    low, high, desired = (given.get(k) for k in ("minSize", "maxSize", "desiredCapacity"))
    failures: list[Failure] = []
    if isinstance(low, int) and isinstance(high, int) and low > high:
        failures.append(Failure(path="minSize", reason=f"minSize {low} is above maxSize {high}"))
    if isinstance(desired, int) and isinstance(high, int) and desired > high:
        failures.append(Failure(path="desiredCapacity", reason=f"desiredCapacity {desired} is above maxSize {high}"))
    if isinstance(desired, int) and isinstance(low, int) and desired < low:
        failures.append(Failure(path="desiredCapacity", reason=f"desiredCapacity {desired} is below minSize {low}"))
    return failures


def _duration(text: str) -> float:
    """Seconds of a text such as `10m`.

    Raises:
        ValueError: not a duration.
    """
    if text == "0":
        return 0.0
    try:
        return float(text[:-1]) * _UNITS[text[-1:]]
    except (KeyError, ValueError) as error:
        raise ValueError(f"waitForCapacityTimeout: {text!r} is not a duration such as 10m or 0") from error


def _timeout_reads(given: Properties) -> list[Failure]:
    value = given.get("waitForCapacityTimeout", "0")
    try:
        if value != UNKNOWN:
            _duration(value)
    except ValueError as error:
        return [Failure(path="waitForCapacityTimeout", reason=str(error))]
    return []


def _template_named_once(given: Properties) -> list[Failure]:
    template = given.get("launchTemplate")
    if not isinstance(template, dict) or ("id" in template) != ("name" in template):
        return []
    return [Failure(path="launchTemplate", reason="exactly one of 'id' and 'name' must be given")]


_NAMING = Naming(prefix_property="namePrefix", limit=255)


class Group(Resource):
    token = "aws:autoscaling/group:Group"
    naming = _NAMING
    force_new = frozenset({"name", "namePrefix"})
    mutable = _FIELDS | _OWN_CALLS | _BEHAVIOUR
    completed = frozenset({"availabilityZones", "targetGroupArns"})
    enums = {
        "suspendedProcesses[*]": _PROCESSES,
        "healthCheckType": frozenset({"EC2", "ELB", "EBS", "VPC_LATTICE"}),
        "desiredCapacityType": frozenset({"units", "vcpu", "memory-mib"}),
        "initialLifecycleHooks[*].lifecycleTransition": _TRANSITIONS,
        "initialLifecycleHooks[*].defaultResult": frozenset({"CONTINUE", "ABANDON"}),
        "instanceRefresh.strategy": frozenset({"Rolling", "ReplaceRootVolume"}),
        "availabilityZoneDistribution.capacityDistributionStrategy": frozenset(
            {"balanced-only", "balanced-best-effort"}
        ),
        "capacityReservationSpecification.capacityReservationPreference": frozenset(
            {"default", "capacity-reservations-only", "capacity-reservations-first", "none"}
        ),
        "mixedInstancesPolicy.instancesDistribution.onDemandAllocationStrategy": frozenset(
            {"prioritized", "lowest-price"}
        ),
        "mixedInstancesPolicy.instancesDistribution.spotAllocationStrategy": frozenset(
            {"lowest-price", "capacity-optimized", "capacity-optimized-prioritized", "price-capacity-optimized"}
        ),
        "terminationPolicies[*]": frozenset(
            {
                "AllocationStrategy", "OldestInstance", "NewestInstance", "OldestLaunchConfiguration",
                "OldestLaunchTemplate", "ClosestToNextInstanceHour", "Default",
            }
        ),
    }  # fmt: skip
    rules = (
        conflicts("name", "namePrefix"),
        one_of("launchTemplate", "mixedInstancesPolicy"),
        one_of("availabilityZones", "vpcZoneIdentifiers"),
        between("minSize", 0, 10_000),
        between("mixedInstancesPolicy.instancesDistribution.onDemandPercentageAboveBaseCapacity", 0, 100),
        between("initialLifecycleHooks[*].heartbeatTimeout", 30, 7200),
        _sizes_in_order,
        _timeout_reads,
        _template_named_once,
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _NAMING.from_prefix(inputs)
        hooks = [_hook_request(hook) for hook in inputs.get("initialLifecycleHooks", [])]
        cloud.client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName=name,
            Tags=_tag_requests(name, inputs.get("tags", [])),
            LifecycleHookSpecificationList=hooks,
            **_request(cloud, "CreateAutoScalingGroup", inputs, _FIELDS | _CREATE_ONLY),
        )
        return name

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        if processes := inputs.get("suspendedProcesses"):
            cloud.client("autoscaling").suspend_processes(AutoScalingGroupName=ident, ScalingProcesses=processes)
        limit = _duration(inputs.get("waitForCapacityTimeout", "10m"))
        wanted = inputs.get("desiredCapacity", inputs["minSize"])
        if limit:
            cloud.wait(
                f"{wanted} instances in service in group {ident} (waitForCapacityTimeout)",
                lambda: _in_service(cloud, ident) >= wanted,
                limit_s=limit,
            )

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        group = _describe(cloud, ident)
        if group is None:
            return None
        given = {k: v for k, v in (state or _IMPORTED).items() if k in _FIELDS - {"vpcZoneIdentifiers"}}
        live = from_answer(given, group, _RENAMES)
        return live | {
            "name": ident,
            "arn": group["AutoScalingGroupARN"],
            "minSize": group["MinSize"],
            "maxSize": group["MaxSize"],
            "desiredCapacity": group["DesiredCapacity"],
            "availabilityZones": group.get("AvailabilityZones", []),
            "vpcZoneIdentifiers": [s for s in group.get("VPCZoneIdentifier", "").split(",") if s],
            "targetGroupArns": group.get("TargetGroupARNs", []),
            "suspendedProcesses": sorted(p["ProcessName"] for p in group.get("SuspendedProcesses", [])),
            "tags": _tags(cloud, group.get("Tags", [])),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        client = cloud.client("autoscaling")
        if fields := change.keys & _FIELDS:
            values = {k: change.new.get(k, _RESET.get(k)) for k in fields}
            request = _request(
                cloud, "UpdateAutoScalingGroup", {k: v for k, v in values.items() if v is not None}, fields
            )
            if request:
                client.update_auto_scaling_group(AutoScalingGroupName=ident, **request)
        _update_processes(client, ident, change)
        _update_tags(client, ident, change)
        _update_targets(client, ident, change)
        if _starts_refresh(change):
            client.start_instance_refresh(AutoScalingGroupName=ident, **_refresh_request(cloud, change.new))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        client = cloud.client("autoscaling")
        group = _describe(cloud, ident)
        if group is None:
            return
        instances = [i["InstanceId"] for i in group.get("Instances", [])]
        force = bool(state.get("forceDelete"))
        if not force:
            client.update_auto_scaling_group(AutoScalingGroupName=ident, MinSize=0, MaxSize=0, DesiredCapacity=0)
            cloud.wait(f"the instances of group {ident} to end", lambda: not _members(cloud, ident))
        or_none(client.delete_auto_scaling_group, AutoScalingGroupName=ident, ForceDelete=force)
        cloud.wait(f"group {ident} to be gone", lambda: _describe(cloud, ident) is None)
        cloud.wait(f"the instances of group {ident} to be terminated", lambda: _all_ended(cloud, instances))


def _request(cloud: Cloud, operation: str, inputs: Properties, names: frozenset[str]) -> Properties:
    given = {k: v for k, v in inputs.items() if k in names}
    if "vpcZoneIdentifiers" in given:
        given["vpcZoneIdentifiers"] = ",".join(given["vpcZoneIdentifiers"])
    return to_request(given, input_shape(cloud, "autoscaling", operation), _RENAMES)


def _describe(cloud: Cloud, name: str) -> dict[str, Any] | None:
    client = cloud.client("autoscaling")
    return first(client.describe_auto_scaling_groups, "AutoScalingGroups", AutoScalingGroupNames=[name])


def _members(cloud: Cloud, name: str) -> list[Any]:
    group = _describe(cloud, name)
    return group.get("Instances", []) if group else []


def _in_service(cloud: Cloud, name: str) -> int:
    return sum(1 for i in _members(cloud, name) if i["LifecycleState"] == "InService")


def _all_ended(cloud: Cloud, instances: list[str]) -> bool:
    """Whether EC2 says of each instance that it is terminated, or knows it no more."""
    for instance in instances:
        try:
            answer = cloud.client("ec2").describe_instances(InstanceIds=[instance])
        except ClientError as error:
            if is_absent(error):
                continue
            raise
        states = [i["State"]["Name"] for r in answer["Reservations"] for i in r["Instances"]]
        if any(s != "terminated" for s in states):
            return False
    return True


def _tag_requests(name: str, tags: list[Properties]) -> list[Properties]:
    return [
        {
            "ResourceId": name,
            "ResourceType": "auto-scaling-group",
            "Key": t["key"],
            "Value": t["value"],
            "PropagateAtLaunch": t["propagateAtLaunch"],
        }
        for t in tags
    ]


def _tags(cloud: Cloud, tags: list[Any]) -> list[Properties]:
    kept = tag_map(cloud, tags)
    return [
        {"key": t["Key"], "value": t["Value"], "propagateAtLaunch": t.get("PropagateAtLaunch", False)}
        for t in tags
        if t["Key"] in kept
    ]


def _update_tags(client: Any, name: str, change: Change) -> None:
    if not change.touches("tags"):
        return
    old, new = change.old.get("tags", []), change.new.get("tags", [])
    kept = {t["key"] for t in new}
    if removed := [t for t in old if t["key"] not in kept]:
        client.delete_tags(Tags=_tag_requests(name, removed))
    if put := [t for t in new if t not in old]:
        client.create_or_update_tags(Tags=_tag_requests(name, put))


def _update_processes(client: Any, name: str, change: Change) -> None:
    if not change.touches("suspendedProcesses"):
        return
    old, new = set(change.old.get("suspendedProcesses", [])), set(change.new.get("suspendedProcesses", []))
    if old - new:
        client.resume_processes(AutoScalingGroupName=name, ScalingProcesses=sorted(old - new))
    if new - old:
        client.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=sorted(new - old))


def _update_targets(client: Any, name: str, change: Change) -> None:
    if not change.touches("targetGroupArns"):
        return
    old, new = set(change.old.get("targetGroupArns", [])), set(change.new.get("targetGroupArns", []))
    if old - new:
        client.detach_load_balancer_target_groups(AutoScalingGroupName=name, TargetGroupARNs=sorted(old - new))
    if new - old:
        client.attach_load_balancer_target_groups(AutoScalingGroupName=name, TargetGroupARNs=sorted(new - old))


def _starts_refresh(change: Change) -> bool:
    """As the real provider: a changed template rolls through the group only where `instanceRefresh` asks for it."""
    refresh = change.new.get("instanceRefresh")
    if not refresh:
        return False
    watched = {"launchTemplate", "mixedInstancesPolicy"} | {_camel(t) for t in refresh.get("triggers", [])}
    return change.touches(*watched)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


def _refresh_request(cloud: Cloud, inputs: Properties) -> Properties:
    refresh = {k: v for k, v in inputs["instanceRefresh"].items() if k != "triggers"}
    return to_request(refresh, input_shape(cloud, "autoscaling", "StartInstanceRefresh"))


def _hook_request(hook: Properties) -> Properties:
    return present(
        LifecycleHookName=hook["name"],
        LifecycleTransition=hook["lifecycleTransition"],
        DefaultResult=hook.get("defaultResult"),
        HeartbeatTimeout=hook.get("heartbeatTimeout"),
        NotificationMetadata=hook.get("notificationMetadata"),
        NotificationTargetARN=hook.get("notificationTargetArn"),
        RoleARN=hook.get("roleArn"),
    )


class LifecycleHook(Resource):
    token = "aws:autoscaling/lifecycleHook:LifecycleHook"
    naming = Naming(limit=255)
    force_new = frozenset({"autoscalingGroupName", "name"})
    mutable = frozenset(
        {
            "defaultResult", "heartbeatTimeout", "lifecycleTransition", "notificationMetadata",
            "notificationTargetArn", "roleArn",
        }
    )  # fmt: skip
    enums = {"lifecycleTransition": _TRANSITIONS, "defaultResult": frozenset({"CONTINUE", "ABANDON"})}
    rules = (between("heartbeatTimeout", 30, 7200),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        cloud.client("autoscaling").put_lifecycle_hook(
            AutoScalingGroupName=inputs["autoscalingGroupName"], **_hook_request(inputs)
        )
        return str(inputs["name"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        hook = first(
            cloud.client("autoscaling").describe_lifecycle_hooks,
            "LifecycleHooks",
            AutoScalingGroupName=state["autoscalingGroupName"],
            LifecycleHookNames=[ident],
        )
        if hook is None:
            return None
        return {
            "name": ident,
            "autoscalingGroupName": hook["AutoScalingGroupName"],
            "lifecycleTransition": hook["LifecycleTransition"],
            "defaultResult": hook.get("DefaultResult"),
            "heartbeatTimeout": hook.get("HeartbeatTimeout"),
            "notificationMetadata": hook.get("NotificationMetadata"),
            "notificationTargetArn": hook.get("NotificationTargetARN"),
            "roleArn": hook.get("RoleARN"),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self.create(cloud, change.new)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(
            cloud.client("autoscaling").delete_lifecycle_hook,
            AutoScalingGroupName=state["autoscalingGroupName"],
            LifecycleHookName=ident,
        )
