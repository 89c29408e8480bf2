"""The loop that makes groups what they wish to be, and walks instances through their life."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from moto.autoscaling.models import LifecycleHook
from moto.core.exceptions import ServiceException
from moto.ec2.models import EC2Backend

from localcloud.aws.capacity_blocks import advance_blocks
from localcloud.aws.groups import LAUNCHING, TERMINATING, Activity, LivingAutoScaling, LivingGroup, Member
from localcloud.aws.instances import advance_all
from localcloud.aws.launch import launch_one
from localcloud.aws.refresh import active, next_victim
from localcloud.aws.reservations import expire
from localcloud.aws.volumes import advance_volumes
from localcloud.aws.world import World

_FIRST_RETRY: Final = timedelta(seconds=10)
_LONGEST_RETRY: Final = timedelta(seconds=60)
"""Auto Scaling waits longer after each failed launch. How long is not documented: assumed."""


def one_round(world: World, ec2: EC2Backend, scaling: LivingAutoScaling) -> None:
    """Advance every instance, then every group, by one step."""
    with world.lock:
        advance_blocks(ec2, world.now())
        expire(ec2, world.now())
        advance_all(ec2, world.now())
        advance_volumes(ec2, world)
        for group in scaling.groups():
            try:
                _advance_group(world, ec2, scaling, group)
            except ServiceException as error:
                # a group that cannot be fulfilled (its template is gone) must not hold up the others
                group.say_once(str(error.message))


def _advance_group(world: World, ec2: EC2Backend, scaling: LivingAutoScaling, group: LivingGroup) -> None:
    now = world.now()
    for member in list(group.members):
        _advance_member(scaling, group, member, now)
    missing = (group.desired_capacity or 0) - sum(1 for member in group.members if member.counts)
    if _refresh(world, ec2, scaling, group, missing):
        return
    if missing < 0 and not group.is_suspended("Terminate"):
        _shrink(scaling, group, -missing, now)
    elif missing > 0 and not group.is_suspended("Launch") and group.status is None:
        _grow(world, ec2, group, missing, now)
    scaling.drop_if_empty(group)


def _refresh(world: World, ec2: EC2Backend, scaling: LivingAutoScaling, group: LivingGroup, missing: int) -> bool:
    """One step of a refresh; True: the group's size is the refresh's matter this round."""
    refresh = active(group)
    if refresh is None:
        return False
    now = world.now()
    victim = next_victim(group, refresh, now)
    if victim is None:
        # a replacement that is not warm yet must not be taken for surplus
        return refresh.surging and missing < 0
    if refresh.launches_first and missing >= 0:
        if group.retry_at is None or now >= group.retry_at:
            refresh.surging = launch_one(world, ec2, group)
            group.retry_at = None if refresh.surging else now + world.time_scale.shorten(_FIRST_RETRY)
        return True
    refresh.surging = False
    begin_end(scaling, group, victim, "an instance was taken out of service in response to an instance refresh.", now)
    return True


def _grow(world: World, ec2: EC2Backend, group: LivingGroup, missing: int, now: datetime) -> None:
    if group.retry_at is not None and now < group.retry_at:
        return
    for _ in range(missing):
        if not launch_one(world, ec2, group):
            group.failures += 1
            wait = min(_LONGEST_RETRY, _FIRST_RETRY * 2 ** min(group.failures - 1, 6))
            group.retry_at = now + world.time_scale.shorten(wait)
            return
    group.failures, group.retry_at = 0, None


def _shrink(scaling: LivingAutoScaling, group: LivingGroup, surplus: int, now: datetime) -> None:
    for _ in range(surplus):
        chosen = _least_wanted(group)
        if chosen is None:
            return
        before = sum(1 for member in group.members if member.counts)
        cause = (
            f"an instance was taken out of service in response to a difference between desired and actual capacity,"
            f" shrinking the capacity from {before} to {before - 1}."
        )
        begin_end(scaling, group, chosen, cause, now)


def _least_wanted(group: LivingGroup) -> Member | None:
    """The default termination policy: fullest zone, oldest template version, oldest instance."""
    free = [member for member in group.members if member.counts and not member.protected_from_scale_in]
    load = Counter(member.availability_zone for member in free)
    return min(
        free,
        key=lambda member: (-load[member.availability_zone], member.version, member.instance.launch_time),
        default=None,
    )


def _advance_member(scaling: LivingAutoScaling, group: LivingGroup, member: Member, now: datetime) -> None:
    state = member.instance.state
    if state == "terminated" and member.leaving:
        _remove(group, member, now)
    elif state in ("shutting-down", "terminated", "stopping", "stopped") and not member.leaving:
        if not group.is_suspended("ReplaceUnhealthy") and not group.is_suspended("HealthCheck"):
            _found_dead(scaling, group, member, now)
    elif member.health_status == "Unhealthy" and not member.leaving:
        if not group.is_suspended("ReplaceUnhealthy"):
            cause = "an instance was taken out of service in response to a user health-check."
            begin_end(scaling, group, member, cause, now)
    elif member.lifecycle_state == "Pending" and state == "running":
        _arrive(scaling, group, member, now)
    elif member.wait_until is not None and now >= member.wait_until:
        _wait_is_over(scaling, group, member, now)


def _arrive(scaling: LivingAutoScaling, group: LivingGroup, member: Member, now: datetime) -> None:
    hook = _hook(scaling, group, LAUNCHING)
    if hook is None:
        _in_service(member, now)
    else:
        member.lifecycle_state = "Pending:Wait"
        member.wait_until = now + timedelta(seconds=hook.heartbeat_timeout)


def _in_service(member: Member, now: datetime) -> None:
    member.lifecycle_state, member.wait_until, member.in_service_since = "InService", None, now
    if member.activity is not None:
        member.activity.finish(now)
        member.activity = None


def begin_end(scaling: LivingAutoScaling, group: LivingGroup, member: Member, cause: str, now: datetime) -> Activity:
    """Take an instance out of its group: through the terminating hook when there is one. Twice is once."""
    if member.leaving and member.activity is not None:
        return member.activity
    activity = group.record(
        f"Terminating EC2 instance: {member.instance.id}", f"At {now:%Y-%m-%dT%H:%M:%SZ} {cause}", now
    )
    member.activity = activity
    hook = _hook(scaling, group, TERMINATING)
    if hook is None or member.instance.state not in ("pending", "running"):
        _proceed(scaling, member)
    else:
        member.lifecycle_state = "Terminating:Wait"
        member.wait_until = now + timedelta(seconds=hook.heartbeat_timeout)
    return activity


def complete(scaling: LivingAutoScaling, group: LivingGroup, member: Member, result: str, now: datetime) -> None:
    """CompleteLifecycleAction: go on (launching: ABANDON ends the instance)."""
    if member.lifecycle_state == "Pending:Wait" and result == "CONTINUE":
        _in_service(member, now)
    elif member.lifecycle_state == "Pending:Wait" or member.lifecycle_state == "Terminating:Wait":
        _proceed(scaling, member)


def _wait_is_over(scaling: LivingAutoScaling, group: LivingGroup, member: Member, now: datetime) -> None:
    transition = TERMINATING if member.leaving else LAUNCHING
    hook = _hook(scaling, group, transition)
    complete(scaling, group, member, hook.default_result if hook else "CONTINUE", now)


def _proceed(scaling: LivingAutoScaling, member: Member) -> None:
    member.lifecycle_state, member.wait_until = "Terminating:Proceed", None
    scaling.ec2_backend.terminate_instances([member.instance.id])


def _found_dead(scaling: LivingAutoScaling, group: LivingGroup, member: Member, now: datetime) -> None:
    member.health_status = "Unhealthy"
    cause = (
        "an instance was taken out of service in response to an EC2 health check indicating it has been terminated"
        " or stopped."
    )
    begin_end(scaling, group, member, cause, now)


def _remove(group: LivingGroup, member: Member, now: datetime) -> None:
    group.instance_states.remove(member)
    if member.activity is not None:
        member.activity.finish(now)


def _hook(scaling: LivingAutoScaling, group: LivingGroup, transition: str) -> LifecycleHook | None:
    hooks = scaling.describe_lifecycle_hooks(group.name)
    return next((hook for hook in hooks if hook.lifecycle_transition == transition), None)
