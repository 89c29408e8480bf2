"""A small world for the watchdogs: every port met in memory, time passed by hand, faults on demand."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpufleet.domain import tags
from gpufleet.domain.activity import Activity, ActivityKind, CloudError, ConflictError, GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Decision, FailedAttempts, Outcome, OutcomeKind, PastAction, Plan, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus, Evidence
from gpufleet.domain.last_lists import LastLists
from gpufleet.domain.model import CapacityType, Group, GroupList, Instance, InstanceList, InstanceState, Phase
from tests.watchdogs.answers import engine_stats, gpu_stats, scrape_rows
from tests.watchdogs.plain import INTERVAL, QUIET, READY, START, FakePrices, instance
from watchdogs.ports import Ports


class KilledError(BaseException):
    """SIGKILL, as seen from within: nothing catches it."""


@dataclass
class World:
    """What there is. `before` is called with the name of each port call, so that a test can break or kill there."""

    now: datetime = START
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    evidence: dict[str, Evidence] = field(default_factory=dict[str, Evidence])
    agents: dict[str, AgentStatus] = field(default_factory=dict[str, AgentStatus])
    activities: list[Activity] = field(default_factory=list[Activity])
    rollouts: set[str] = field(default_factory=set[str])
    targets: dict[str, Target] = field(default_factory=dict[str, Target])
    lowered: set[str] = field(default_factory=set[str])
    brakes: list[Brake] = field(default_factory=list[Brake])
    seen: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    plans: list[Plan] = field(default_factory=list[Plan])
    outcomes: list[tuple[datetime, Outcome]] = field(default_factory=list[tuple[datetime, Outcome]])
    intents: dict[str, Decision] = field(default_factory=dict[str, Decision])
    messages: dict[str, str] = field(default_factory=dict[str, str])
    with_button: set[str] = field(default_factory=set[str])
    """Keys of messages with a button to keep the instance."""
    boots: dict[tuple[str, datetime], Boot] = field(default_factory=dict[tuple[str, datetime], Boot])
    """What the ledger remembers of them, by instance and launch."""
    reads: dict[str, GroupActivities] = field(default_factory=dict[str, GroupActivities])
    """What the ledger remembers of groups, by name."""
    last_lists: LastLists = LastLists()
    """What a pass noted last for other processes."""
    last_lists_at: datetime = datetime.min.replace(tzinfo=UTC)
    hooks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Group and instance of each hook that was completed."""
    claiming: list[Instance] = field(default_factory=list[Instance])
    """With a pool's tag and without an environment's."""
    ended: list[str] = field(default_factory=list[str])
    stopped: list[str] = field(default_factory=list[str])
    drains: list[str] = field(default_factory=list[str])
    drain_takes: timedelta = timedelta(seconds=3)
    lingers: bool = False
    """Whether what is ended lives on until the test says otherwise, as at a hook of its group."""
    load: list[tuple[Mapping[str, str], float]] = field(default_factory=list[tuple[Mapping[str, str], float]])
    """What the store says of the pools' load: rows of `watchdogs.scale.pressure`."""
    lease_is_ours: bool = True
    capacity: dict[str, int] = field(default_factory=dict[str, int])
    """How many more each group would be given."""
    malformed: dict[str, str] = field(default_factory=dict[str, str])
    """By instance that the list of GPUs has and that cannot be read: why."""
    launched: int = 0
    before: Callable[[str], None] = lambda name: None
    drained_at: dict[str, datetime] = field(default_factory=dict[str, datetime])

    def ports(self) -> Ports:
        return Ports(
            inventory=FakeInventory(self),
            groups=FakeGroups(self),
            metrics=FakeMetrics(self),
            agents=FakeAgents(self),
            prices=FakePrices(),
            messages=FakeMessages(self),
            ledger=FakeLedger(self),
            clock=FakeClock(self),
            account=FakeAccount(self),
        )

    def reconcile(self, name: str) -> None:
        """Launch what a group lacks, where `capacity` says that there is some."""
        group = self.groups[name]
        while len(group.instance_ids) < group.desired:
            if self.capacity.get(name, 0) <= 0:
                self.happened(name, ActivityKind.NO_CAPACITY, None)
                return
            self.capacity[name] -= 1
            self.launched += 1
            one = instance(
                100 + self.launched,
                group=name,
                zone=group.zone or "us-east-1a",
                capacity_type=group.capacity_type,
                launched_at=self.now,
            )
            self.instances[one.id] = one
            self.agents[one.id] = replace(READY, phase=Phase.CACHE, ready=False)
            group = replace(group, instance_ids=(*group.instance_ids, one.id))
            self.happened(name, ActivityKind.LAUNCHED, one.id)
        self.groups[name] = group

    def happened(self, group: str, kind: ActivityKind, instance_id: str | None) -> None:
        """Note an activity of a group."""
        self.activities.append(
            Activity(
                id=str(len(self.activities)),
                group=group,
                kind=kind,
                at=self.now.replace(microsecond=0),
                instance_id=instance_id,
            )
        )

    def boot(self) -> None:
        """Everything that loads is ready now."""
        for key, status in self.agents.items():
            if not status.ready and not status.draining:
                self.agents[key] = replace(status, phase=Phase.READY, ready=True, phase_since=self.now)

    def lose(self, instance_id: str) -> None:
        """The cloud takes an instance without a word; its group looks for another one."""
        one = self.instances[instance_id]
        self.instances[instance_id] = replace(one, state=InstanceState.TERMINATED)
        name = one.group or ""
        group = self.groups[name]
        left = tuple(i for i in group.instance_ids if i != instance_id)
        self.groups[name] = replace(group, instance_ids=left)
        self.happened(name, ActivityKind.PREEMPTED, instance_id)
        self.reconcile(name)

    def alive(self, name: str) -> list[str]:
        """The living instances of a group."""
        return [key for key, one in self.instances.items() if one.alive and one.group == name]

    def kinds(self) -> list[tuple[str, OutcomeKind]]:
        return [(outcome.decision.resource, outcome.kind) for _, outcome in self.outcomes]

    def kill_at(self, call: str, run: Callable[[], object]) -> None:
        """Run until right before the first call of that name, which must come."""

        def kill(name: str) -> None:
            if name == call:
                raise KilledError

        self.before = kill
        try:
            run()
        except KilledError:
            self.before = lambda _: None
        else:
            raise AssertionError(f"{call} was never called")


@dataclass
class FakeClock:
    world: World

    def now(self) -> datetime:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        self.world.now += timedelta(seconds=seconds)


@dataclass
class FakeInventory:
    world: World

    def instances(self) -> Sequence[Instance]:
        self.world.before("instances")
        return [i for i in self.world.instances.values() if i.state is not InstanceState.TERMINATED]

    def listed(self) -> InstanceList:
        return InstanceList(instances=self.instances())

    def claiming(self) -> InstanceList:
        self.world.before("claiming")
        return InstanceList(instances=tuple(self.world.claiming))

    def instance(self, instance_id: str) -> Instance | None:
        self.world.before("instance")
        return self.world.instances.get(instance_id)

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        self.world.before("ended")
        return [self.world.instances[key] for key in instance_ids if key in self.world.instances]

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        self.world.before("tag")
        for key in instance_ids:
            old = self.world.instances[key]
            self.world.instances[key] = replace(old, tags={**old.tags, **values})
        return {}

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        self.world.before("untag")
        for key in instance_ids:
            old = self.world.instances[key]
            self.world.instances[key] = replace(old, tags={k: v for k, v in old.tags.items() if k not in keys})
        return {}


@dataclass
class FakeAccount:
    world: World

    def gpus(self) -> InstanceList:
        self.world.before("gpus")
        found = [i for i in self.world.instances.values() if i.state is not InstanceState.TERMINATED]
        readable = [one for one in found if one.id not in self.world.malformed]
        return InstanceList(instances=readable, errors=dict(self.world.malformed))

    def stop(self, instance_id: str) -> None:
        self.world.before("stop")
        there = self.world.instances[instance_id]
        if there.alive:
            self.world.stopped.append(instance_id)
        self.world.instances[instance_id] = replace(there, state=InstanceState.STOPPING)


@dataclass
class FakeGroups:
    world: World

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        self.world.before("groups")
        missing = [name for name in names if name not in self.world.groups]
        if missing:
            raise CloudError(f"no groups {missing}")
        return [self.world.groups[name] for name in names]

    def readable(self, names: Sequence[str]) -> GroupList:
        self.world.before("groups")
        found = {name: self.world.groups[name] for name in names if name in self.world.groups}
        return GroupList(groups=found, errors={name: "it is missing" for name in names if name not in found})

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        self.world.before("activities")
        return [a for a in self.world.activities if a.group in names and a.at >= since]

    def resize(self, group: Group, size: int) -> None:
        self.world.before("resize")
        there = self.world.groups[group.name]
        if there.desired != group.desired:
            raise ConflictError(f"{group.name} has changed")
        self.world.groups[group.name] = replace(there, desired=size)
        self.world.reconcile(group.name)

    def end(self, instance_id: str, group: str, *, lower_desired: bool) -> None:
        self.world.before("end")
        there = self.world.instances[instance_id]
        if there.state is InstanceState.TERMINATED and instance_id not in self.world.groups[group].instance_ids:
            return
        if not self.world.lingers:
            self.world.instances[instance_id] = replace(there, state=InstanceState.TERMINATED)
        self.world.ended.append(instance_id)
        old = self.world.groups[group]
        self.world.groups[group] = replace(
            old,
            leaving=old.leaving | ({instance_id} if self.world.lingers else set()),
            desired=old.desired - (1 if lower_desired else 0),
            instance_ids=tuple(i for i in old.instance_ids if i != instance_id),
        )

    def resume_processes(self, name: str, processes: Collection[str]) -> None:
        self.world.before("resume_processes")
        there = self.world.groups[name]
        kept = tuple(one for one in there.suspended if one.process not in processes)
        self.world.groups[name] = replace(there, suspended=kept)

    def complete_hooks(self, name: str, *, serving: Collection[str], drained: Collection[str]) -> Mapping[str, str]:
        self.world.before("complete_hooks")
        there = self.world.groups[name]
        assert there.waiting_to_serve.issuperset(serving), "it waits for them"
        assert there.waiting_to_end.issuperset(drained), "it waits for them"
        self.world.hooks += [(name, key) for key in (*serving, *drained)]
        self.world.groups[name] = replace(
            there,
            waiting_to_serve=there.waiting_to_serve - set(serving),
            waiting_to_end=there.waiting_to_end - set(drained),
        )
        return {}

    def in_rollout(self, names: Sequence[str], surely: Collection[str] = ()) -> frozenset[str]:
        self.world.before("in_rollout")
        return frozenset(self.world.rollouts & set(names))


@dataclass
class FakeMetrics:
    """Answers the union queries of `signals` from the world's evidence."""

    world: World

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        self.world.before("query")
        rows: list[tuple[Mapping[str, str], float]] = []
        if expression.startswith("max by (instance_id) (max_over_time(up{"):
            return [({"instance_id": key}, 1.0) for key, e in self.world.evidence.items() if e.reached]
        if "timestamp(up{" in expression:
            return [row for key, e in self.world.evidence.items() for row in scrape_rows(key, e, at)]
        if "__name__" in expression:
            found = {key: e.gpu.active_max for key, e in self.world.evidence.items() if e.gpu is not None}
            return [({"instance_id": key}, value) for key, value in found.items() if value is not None]
        if "gpufleet:" in expression or '"reporting"' in expression:
            return self.world.load
        span = timedelta(seconds=max(int(seconds) for seconds in re.findall(r"\[(\d+)s\]", expression)))
        for key, evidence in self.world.evidence.items():
            told = engine_stats if "vllm:" in expression else gpu_stats
            stats = told(evidence, at, span)
            rows += [({"instance_id": key, "stat": name}, value) for name, value in stats.items()]
        return rows

    def now(self) -> datetime:
        self.world.before("store_now")
        return self.world.now

    def interval(self, job: str) -> timedelta | None:
        self.world.before("interval")
        return INTERVAL


@dataclass
class FakeAgents:
    world: World

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, AgentStatus]:
        self.world.before("statuses")
        found: dict[str, AgentStatus] = {}
        for one in instances:
            status = self.world.agents.get(one.id)
            if status is None or not self.world.instances.get(one.id, one).alive:
                continue
            done = self.world.drained_at.get(one.id)
            if done is not None and self.world.now >= done:
                status = replace(status, phase=Phase.DRAINED, drained=True, requests_running=0)
            found[one.id] = status
        return found

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline: timedelta) -> AgentStatus:
        self.world.before("drain")
        if instance.id not in self.world.agents:
            raise CloudError("the agent does not answer")
        self.world.drains.append(instance.id)
        self.world.drained_at.setdefault(instance.id, self.world.now + self.world.drain_takes)
        held = self.world.agents[instance.id]
        owner, why = (by, reason) if held.drain_by is None else (held.drain_by, held.reason)
        status = replace(held, phase=Phase.DRAINING, draining=True, ready=False, drain_by=owner, reason=why)
        self.world.agents[instance.id] = status
        return status


@dataclass
class FakeMessages:
    world: World

    def tell(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        self.world.before("tell")
        self.world.messages.setdefault(key, text)
        if detail.get("may_keep"):
            self.world.with_button.add(key)


@dataclass
class FakeLedger:
    world: World

    def targets(self) -> Mapping[str, Target]:
        self.world.before("targets")
        return dict(self.world.targets)

    def set_target(self, seen: Target, value: int, by: str, reason: str, at: datetime) -> Target:
        self.world.before("set_target")
        there = self.world.targets[seen.pool]
        if there.version != seen.version:
            raise ConflictError("the target has changed")
        self.world.targets[seen.pool] = Target(pool=seen.pool, value=value, version=seen.version + 1)
        return self.world.targets[seen.pool]

    def lower_target(self, pool: str, floor: int, because: str, at: datetime) -> Target:
        self.world.before("lower_target")
        there = self.world.targets[pool]
        held = any(brake.kind is BrakeKind.TARGET and brake.scope == pool for brake in self.world.brakes)
        if because in self.world.lowered or held or there.value - 1 < floor:
            return there
        self.world.lowered.add(because)
        self.world.targets[pool] = Target(pool=pool, value=there.value - 1, version=there.version + 1)
        return self.world.targets[pool]

    def brakes(self, now: datetime) -> Sequence[Brake]:
        self.world.before("brakes")
        return list(self.world.brakes)

    def boots(self) -> Sequence[Boot]:
        self.world.before("boots")
        return sorted(self.world.boots.values(), key=lambda boot: (boot.launched_at, boot.instance_id))

    def note_boots(self, seen: Collection[Boot], now: datetime) -> None:
        self.world.before("note_boots")
        self.world.boots |= {boot.key: boot for boot in seen}

    def activities(self, since: datetime) -> Sequence[GroupActivities]:
        self.world.before("ledger_activities")
        return [
            replace(one, events=tuple(event for event in one.events if event.at >= since))
            for one in self.world.reads.values()
        ]

    def last_lists(self) -> LastLists:
        self.world.before("last_lists")
        return self.world.last_lists

    def note_last_lists(self, lists: LastLists, at: datetime) -> None:
        self.world.before("note_last_lists")
        if at >= self.world.last_lists_at:
            self.world.last_lists, self.world.last_lists_at = lists, at

    def note_activities(self, read: Collection[GroupActivities], since: datetime) -> None:
        self.world.before("note_activities")
        for one in read:
            before = self.world.reads.get(one.group)
            events = {event.id: event for event in (*(before.events if before else ()), *one.events)}
            kept = sorted(events.values(), key=lambda event: (event.at, event.id))
            self.world.reads[one.group] = replace(one, events=tuple(event for event in kept if event.at >= since))

    def policy_seen(self, watchdog: str, pool: str, digest: str) -> bool:
        self.world.before("policy_seen")
        return (watchdog, pool, digest) in self.world.seen

    def see_policy(self, watchdog: str, pool: str, digest: str, by: str, at: datetime) -> None:
        self.world.before("see_policy")
        self.world.seen.add((watchdog, pool, digest))

    def record(self, plan: Plan) -> None:
        self.world.before("record")
        self.world.plans.append(plan)

    def intend(self, watchdog: str, decision: Decision, at: datetime) -> None:
        self.world.before("intend")
        self.world.intents.setdefault(decision.resource, decision)

    def unfinished(self, watchdog: str) -> Sequence[Decision]:
        self.world.before("unfinished")
        return list(self.world.intents.values())

    def record_outcome(self, watchdog: str, outcome: Outcome, at: datetime) -> None:
        self.world.before("record_outcome")
        self.world.outcomes.append((at, outcome))
        if outcome.kind not in (OutcomeKind.WAITING, OutcomeKind.FAILED):
            self.world.intents.pop(outcome.decision.resource, None)

    def ended_since(self, watchdog: str, since: datetime) -> Mapping[str, int]:
        self.world.before("ended_since")
        found: dict[str, int] = {}
        for at, outcome in self.world.outcomes:
            if at >= since and outcome.kind is OutcomeKind.DONE and outcome.decision.action in ("end", "stop"):
                pool = outcome.decision.pool or ""
                found[pool] = found.get(pool, 0) + 1
        return found

    def done_since(self, watchdog: str, since: datetime) -> Sequence[PastAction]:
        self.world.before("done_since")
        return [
            PastAction(
                resource=d.resource, pool=d.pool, action=d.action, reason=d.reason, at=at, detail=outcome.detail
            )
            for at, outcome in self.world.outcomes
            if at >= since and outcome.kind is OutcomeKind.DONE and (d := outcome.decision)
        ]

    def failed_since(self, watchdog: str, since: datetime) -> Mapping[str, FailedAttempts]:
        self.world.before("failed_since")
        found: dict[str, list[datetime]] = {}
        for at, outcome in self.world.outcomes:
            open_ = outcome.kind in (OutcomeKind.WAITING, OutcomeKind.FAILED)
            if at >= since and open_ and outcome.decision.action in ("end", "stop"):
                found.setdefault(outcome.decision.resource, []).append(at)
        return {resource: FailedAttempts(first=min(times), last=max(times)) for resource, times in found.items()}

    def hold(self, now: datetime) -> bool:
        self.world.before("hold")
        return self.world.lease_is_ours


def idle_world(count: int = 2, **changes: Any) -> World:
    """Pool `batch` with `count` idle spot instances in zone a, all covered by both sources, agents ready."""
    world = World()
    for number in range(1, count + 1):
        one = instance(number, **changes)
        world.instances[one.id] = one
        world.evidence[one.id] = QUIET
        world.agents[one.id] = READY
    world.groups["batch-spot-a"] = Group(
        name="batch-spot-a",
        pool="batch",
        capacity_type=CapacityType.SPOT,
        zone="us-east-1a",
        desired=count,
        min=0,
        max=4,
        instance_ids=tuple(world.instances),
    )
    for name, kind, zone in (
        ("batch-spot-b", CapacityType.SPOT, "us-east-1b"),
        ("batch-od", CapacityType.ON_DEMAND, None),
    ):
        world.groups[name] = Group(
            name=name, pool="batch", capacity_type=kind, zone=zone, desired=0, min=0, max=4, instance_ids=()
        )
    world.targets["batch"] = Target(pool="batch", value=count, version=1)
    return world


def mark(world: World, number: int, since: datetime) -> None:
    """Give an instance the watchdog's mark."""
    key = instance(number).id
    old = world.instances[key]
    world.instances[key] = replace(old, tags={**old.tags, tags.IDLE_SINCE: tags.write_time(since)})
