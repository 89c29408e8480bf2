"""The loop that brings groups to their desired size and advances the state of instances."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from moto.autoscaling.models import LifecycleHook
from moto.core.exceptions import ServiceException
from moto.ec2.models import EC2Backend
from moto.moto_api._internal import mock_random

from localcloud.aws.capacity_blocks import advance_blocks
from localcloud.aws.groups import LAUNCHING, TERMINATING, Activity, EmulatedAutoScaling, EmulatedGroup, Member
from localcloud.aws.instances import advance_all
from localcloud.aws.launch import launch_one
from localcloud.aws.refresh import active, next_victim
from localcloud.aws.reservations import expire
from localcloud.aws.state import AwsState
from localcloud.aws.volumes import advance_volumes

_FIRST_RETRY: Final = timedelta(seconds=10)
_LONGEST_RETRY: Final = timedelta(seconds=60)
"""Auto Scaling waits longer after each failed launch. How long is not documented: assumed."""
_HEALTH_CHECK: Final = timedelta(seconds=8)
"""From the end of an instance until its group finds out. Assumed."""
_REPLACES: Final = timedelta(seconds=1)
"""From the end of a member to the launch of another (recorded: 1 to 2 s)."""
_ABANDONED: Final = (
    "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {} was abandoned: {}"
)
_DIED: Final = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: {}"
_TAKEN_OUT: Final = "an instance was taken out of service in response to"
_ENDS: Final = frozenset({"shutting-down", "terminated", "stopping", "stopped"})


def one_round(cloud_state: AwsState, ec2: EC2Backend, scaling: EmulatedAutoScaling) -> None:
    """Advance every instance, then every group, by one step."""
    with cloud_state.lock:
        advance_blocks(ec2, cloud_state.now())
        expire(ec2, cloud_state.now())
        advance_all(ec2, cloud_state.now())
        advance_volumes(ec2, cloud_state)
        for group in scaling.groups():
            try:
                _advance_group(cloud_state, ec2, scaling, group)
            except ServiceException as error:
                # a group that cannot be fulfilled (its template is gone) must not hold up the others
                group.report_once(str(error.message))


def _advance_group(
    cloud_state: AwsState, ec2: EC2Backend, scaling: EmulatedAutoScaling, group: EmulatedGroup
) -> None:
    now = cloud_state.now()
    for member in list(group.members):
        _advance_member(scaling, group, member, now)
    missing = (group.desired_capacity or 0) - sum(1 for member in group.members if member.counts)
    if missing <= 0:
        group.note_success()
    if _refresh(cloud_state, ec2, scaling, group, missing):
        return
    if group.acts_at is None or now >= group.acts_at:
        if missing < 0 and not group.is_suspended("Terminate"):
            _shrink(scaling, group, -missing)
        elif missing > 0 and not group.is_suspended("Launch") and group.status is None:
            _grow(cloud_state, ec2, group, missing, now)
    scaling.drop_if_empty(group)


def _refresh(
    cloud_state: AwsState, ec2: EC2Backend, scaling: EmulatedAutoScaling, group: EmulatedGroup, missing: int
) -> bool:
    """One step of an instance refresh. True: the refresh controls the group's size in this round."""
    refresh = active(group)
    if refresh is None:
        return False
    now = cloud_state.now()
    victim = next_victim(group, refresh, now)
    if victim is None:
        # a replacement that is not warm yet must not be taken for surplus
        return refresh.surging and missing < 0
    if refresh.launches_first and missing >= 0:
        if group.acts_at is None or now >= group.acts_at:
            cause = group.cause("an instance was launched in response to an instance refresh.")
            refresh.surging = launch_one(cloud_state, ec2, group, cause)
            group.acts_at = None if refresh.surging else now + cloud_state.time_scale.shorten(_FIRST_RETRY)
        return True
    refresh.surging = False
    begin_end(scaling, group, victim, group.cause(f"{_TAKEN_OUT} an instance refresh."))
    return True


def _grow(cloud_state: AwsState, ec2: EC2Backend, group: EmulatedGroup, missing: int, now: datetime) -> None:
    """One step: each of its launches names the whole step as its cause."""
    group.acts_at = None
    replaced, group.replaces = min(group.replaces, missing), 0
    causes = [group.cause("an instance was launched in response to an unhealthy instance needing to be replaced.")]
    causes *= replaced
    if missing > replaced:
        low = (group.desired_capacity or 0) - missing + replaced
        difference = (
            "an instance was started in response to a difference between desired and actual capacity, increasing the"
            f" capacity from {low} to {low + missing - replaced}."
        )
        causes += [group.cause_of_step(difference)] * (missing - replaced)
    for cause in causes:
        if not launch_one(cloud_state, ec2, group, cause):
            group.note_failure()
            wait = min(_LONGEST_RETRY, _FIRST_RETRY * 2 ** min(group.failures - 1, 6))
            group.acts_at = now + cloud_state.time_scale.shorten(wait)
            return
    group.note_success()


def _shrink(scaling: EmulatedAutoScaling, group: EmulatedGroup, surplus: int) -> None:
    group.acts_at = None
    before = sum(1 for member in group.members if member.counts)
    step = group.cause_of_step(
        f"{_TAKEN_OUT} a difference between desired and actual capacity, shrinking the capacity from {before} to"
        f" {before - surplus}."
    )
    for _ in range(surplus):
        chosen = _least_wanted(group)
        if chosen is None:
            return
        selected = group.cause(f"instance {chosen.instance.id} was selected for termination.")
        begin_end(scaling, group, chosen, f"{step}  {selected}")


def _least_wanted(group: EmulatedGroup) -> Member | None:
    """The default termination policy: fullest zone, oldest template version, oldest instance."""
    free = [member for member in group.members if member.counts and not member.protected_from_scale_in]
    load = Counter(member.availability_zone for member in free)
    return min(
        free,
        key=lambda member: (-load[member.availability_zone], member.version, member.instance.launch_time),
        default=None,
    )


def _advance_member(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, now: datetime) -> None:
    state = member.instance.state
    if state == "terminated" and member.leaving:
        _remove(group, member, now)
    elif state in _ENDS and not member.leaving:
        if not group.is_suspended("ReplaceUnhealthy") and not group.is_suspended("HealthCheck"):
            _replace_ended(scaling, group, member, now)
    elif member.health_status == "Unhealthy" and not member.leaving:
        if not group.is_suspended("ReplaceUnhealthy"):
            _replace(scaling, group, member, "a user health-check.", now)
    elif member.lifecycle_state == "Pending" and state == "running":
        _arrive(scaling, group, member, now)
    elif member.lifecycle_state == "Pending:Proceed":
        _in_service(member, now)
    elif member.wait_until is not None and now >= member.wait_until:
        _wait_is_over(scaling, group, member, now)


def _arrive(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, now: datetime) -> None:
    hook = _hook(scaling, group, LAUNCHING)
    if hook is None:
        _in_service(member, now)
    else:
        _wait(group, member, "Pending:Wait", hook, now)
        if member.launch is not None:
            member.launch.advance("MidLifecycleAction", 60)


def _wait(group: EmulatedGroup, member: Member, state: str, hook: LifecycleHook, now: datetime) -> None:
    """Begin a lifecycle action."""
    member.lifecycle_state, member.token = state, str(mock_random.uuid4())
    member.wait_until = now + heartbeat(group, hook)


def heartbeat(group: EmulatedGroup, hook: LifecycleHook) -> timedelta:
    """How long a lifecycle action of the hook waits."""
    return group.cloud_state.time_scale.shorten(timedelta(seconds=hook.heartbeat_timeout))


def _in_service(member: Member, now: datetime) -> None:
    member.lifecycle_state, member.wait_until, member.in_service_since = "InService", None, now
    if member.launch is not None:
        member.launch.finish(now)


def begin_end(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, cause: str) -> Activity:
    """Take an instance out of its group: through the terminating hook if there is one. Idempotent."""
    if member.leaving and member.end is not None:
        return member.end
    now = group.cloud_state.now()
    if member.launch is not None:
        # of what was not in service yet: assumed
        member.launch.finish(now, code="Cancelled")
    activity = group.record(f"Terminating EC2 instance: {member.instance.id}", cause, now, member.details)
    member.end = activity
    hook = _hook(scaling, group, TERMINATING)
    if hook is None or member.instance.state not in ("pending", "running"):
        _proceed(scaling, member, "Terminating")
    else:
        _wait(group, member, "Terminating:Wait", hook, now)
        activity.advance("MidLifecycleAction", 60)
    return activity


def complete(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, result: str) -> None:
    """Complete a lifecycle action: continue, or with ABANDON while launching, terminate the instance."""
    if member.lifecycle_state == "Terminating:Wait":
        _proceed(scaling, member, "Terminating:Proceed")
    elif member.lifecycle_state == "Pending:Wait" and result == "CONTINUE":
        member.lifecycle_state, member.wait_until = "Pending:Proceed", None
    elif member.lifecycle_state == "Pending:Wait":
        _give_up(
            scaling, group, member, _ABANDONED.format(member.token, "Lifecycle Action Completed with ABANDON Result")
        )


def _wait_is_over(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, now: datetime) -> None:
    """No answer within the heartbeat: apply the hook's default result."""
    hook = _hook(scaling, group, TERMINATING if member.leaving else LAUNCHING)
    if member.leaving or hook is None or hook.default_result == "CONTINUE":
        complete(scaling, group, member, "CONTINUE")
    else:
        _give_up(scaling, group, member, _ABANDONED.format(member.token, "Heartbeat Timeout"))


def _give_up(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, message: str) -> None:
    """Cancel a launch whose instance exists already, and terminate that instance."""
    now = group.cloud_state.now()
    if member.launch is not None:
        member.launch.finish(now, code="Cancelled", message=message)
    _launch_soon(group, now)
    cause = group.cause(f"{_TAKEN_OUT} a launch failure.")
    member.end = group.record(f"Terminating EC2 instance: {member.instance.id}", cause, now, member.details)
    _proceed(scaling, member, "Terminating")


def _proceed(scaling: EmulatedAutoScaling, member: Member, state: str) -> None:
    member.lifecycle_state, member.wait_until = state, None
    if member.end is not None:
        member.end.advance("InProgress", 60)
    scaling.ec2_backend.terminate_instances([member.instance.id])


def _replace_ended(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, now: datetime) -> None:
    """Replace a member whose instance ends. The cause of the end does not matter to the group."""
    if member.found_dead_at is None:
        member.found_dead_at = now
    if now < member.found_dead_at + group.cloud_state.time_scale.shorten(_HEALTH_CHECK):
        return
    member.health_status = "Unhealthy"
    if member.launch is not None and not member.launch.is_over:
        _give_up(scaling, group, member, _DIED.format(member.instance.why))
    else:
        _replace(scaling, group, member, "an EC2 health check indicating it has been terminated or stopped.", now)


def _replace(scaling: EmulatedAutoScaling, group: EmulatedGroup, member: Member, why: str, now: datetime) -> None:
    group.replaces += 1
    _launch_soon(group, now)
    begin_end(scaling, group, member, group.cause(f"{_TAKEN_OUT} {why}"))


def _launch_soon(group: EmulatedGroup, now: datetime) -> None:
    """Launch after a delay; a group that waits for its next attempt keeps its own delay."""
    if group.acts_at is None:
        group.acts_at = now + group.cloud_state.time_scale.shorten(_REPLACES)


def _remove(group: EmulatedGroup, member: Member, now: datetime) -> None:
    group.instance_states.remove(member)
    if member.end is not None:
        member.end.finish(now)


def _hook(scaling: EmulatedAutoScaling, group: EmulatedGroup, transition: str) -> LifecycleHook | None:
    hooks = scaling.describe_lifecycle_hooks(group.name)
    return next((hook for hook in hooks if hook.lifecycle_transition == transition), None)
