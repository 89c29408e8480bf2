"""The agent's loop: polls the cloud's notices, drains, monitors the engine, powers off a failed instance."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.clocks import is_over
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from hosts.node import stop_marker
from hosts.node.boot import NodeServices
from hosts.node.drain import DrainFacts, DrainStep, Order, is_quiet, merge, next_step
from hosts.node.ports import CloudNotice, EngineLoad, Notice, StepError, UnitState
from hosts.node.state import NodeState
from serving import engine_container, engine_gate
from serving.instance_settings import InstanceSettings

QUIET_TIME: Final = engine_container.STOP_DELAY
"""How long the engine must be idle in a drain after each router is notified: a request may be in transit."""
HEALTH_POLL: Final = timedelta(seconds=2)
RESTARTS: Final = 3
"""Engine restarts by the agent, in addition to systemd's own. After them the instance is failed."""
LONGEST_NOTICE: Final = timedelta(seconds=125)
"""Clouds announce a preemption at most two minutes ahead. A later time in a notice means that the clock is wrong."""


@dataclass(slots=True, kw_only=True)
class Agent:
    """The agent of one instance, after the boot has started."""

    settings: InstanceSettings
    services: NodeServices
    state: NodeState
    power_off: Callable[[], None]
    quiet_time: timedelta = QUIET_TIME
    _notices_at: datetime | None = field(default=None, init=False)
    _health_at: datetime | None = field(default=None, init=False)
    _unwell_since: datetime | None = field(default=None, init=False)
    _quiet_since: datetime | None = field(default=None, init=False)
    _stopping_since: datetime | None = field(default=None, init=False)
    _powered_off: bool = field(default=False, init=False)

    def tick(self) -> None:
        """Check everything once and do what is due. Never raises for errors of the cloud, systemd or the engine."""
        now = self.state.now()
        self._poll_notices(now)
        phase = self.state.phase
        if phase is Phase.READY:
            self._watch_engine(now)
        elif phase is Phase.FAILED:
            self._watch_failure(now)
        if self.state.order is not None and phase is not Phase.DRAINED:
            self._drain(self.state.order, now)

    def ask_to_drain(self, by: DrainOwner, reason: str, deadline: timedelta) -> Order:
        """Start a drain that a user or a watchdog requests."""
        now = self.state.now()
        return self.state.order_drain(Order(by=by, reason=reason, asked_at=now, deadline=now + deadline))

    def _poll_notices(self, now: datetime) -> None:
        if not is_over(self._notices_at, self.settings.metadata_poll, now):
            return
        self._notices_at = now
        try:
            notices = self.services.cloud.notices()
        except OSError as error:
            self.state.warn("metadata", str(error))
            return
        self.state.warn("metadata", None)
        self.state.rebalance_advised = any(notice.kind is Notice.REBALANCE for notice in notices)
        for notice in notices:
            self._handle_notice(notice, now)

    def _handle_notice(self, notice: CloudNotice, now: datetime) -> None:
        if notice.kind is Notice.REBALANCE:
            # Only reported: the spot watchdog decides whether to drain early.
            return
        order = Order(
            by=DrainOwner.CLOUD,
            reason=notice.kind.value,
            asked_at=now,
            deadline=self._deadline(notice, now),
            notice_at=now if notice.kind is Notice.PREEMPTION else None,
        )
        # Each poll returns the same notice again; it changes nothing then.
        if merge(self.state.order, order) != self.state.order:
            self.state.order_drain(order)

    def _deadline(self, notice: CloudNotice, now: datetime) -> datetime:
        """Return the notice's time if the instance's clock makes it plausible, else the settings' drain deadline."""
        if notice.at is not None and now < notice.at <= now + LONGEST_NOTICE:
            return notice.at
        if notice.at is not None and self.state.order is None:
            self.state.warn(
                "clock",
                f"received a notice for {notice.at:%H:%M:%S} at {now:%H:%M:%S}: the clock of this instance is wrong",
            )
        shortest = LONGEST_NOTICE - self.settings.metadata_poll * 2
        return now + min(self.settings.drain_deadline, shortest if notice.at else self.settings.drain_deadline)

    def _drain(self, order: Order, now: datetime) -> None:
        load = self.services.engine.load() if self.state.has_served else EngineLoad(running=0, waiting=0)
        self.state.requests_running = None if load is None else load.running
        # A clock that is set back must not delay what waits for these times.
        quiet = is_quiet(load) and (self.state.routers_know or not self.state.has_served)
        self._quiet_since = min(self._quiet_since or now, now) if quiet else None
        if self._stopping_since is not None:
            self._stopping_since = min(self._stopping_since, now)
        facts = DrainFacts(
            now=now,
            engine=self._engine_state(load),
            load=load,
            quiet_since=self._quiet_since,
            stopping_since=self._stopping_since,
        )
        quiet_time = self.quiet_time if self.state.has_served else timedelta()
        step = next_step(order, facts, margin=self.settings.drain_margin, quiet_time=quiet_time)
        try:
            self._execute(step, order, now, load)
        except StepError as error:
            self.state.warn("drain", str(error))

    def _engine_state(self, load: EngineLoad | None) -> UnitState:
        """Return the state of the engine's unit. Query systemd, which costs a process, only when it can matter."""
        if self.state.has_served and load is not None and self._stopping_since is None:
            return UnitState.ACTIVE
        return self.services.units.state(engine_container.UNIT)

    def _execute(self, step: DrainStep, order: Order, now: datetime, load: EngineLoad | None) -> None:
        match step:
            case DrainStep.WAIT:
                return
            case DrainStep.STOP:
                self._stopping_since = now
                if load is not None:
                    self.state.counters.requests_cut += int(load.running + load.waiting)
                self.state.log.info("engine", outcome="stopping", requests_cut=self.state.counters.requests_cut)
                stop_marker.mark(self.services.root)
                self.services.units.stop(engine_container.UNIT)
            case DrainStep.KILL:
                self.state.log.warning("engine", outcome="killed")
                self.services.units.kill(engine_container.UNIT)
            case DrainStep.FINISH:
                self.state.requests_running = 0
                self.state.enter(Phase.DRAINED)
                self.state.log.info(
                    "drain",
                    outcome="finished",
                    by=order.by,
                    deadline=order.deadline,
                    notice_at=order.notice_at,
                    duration_s=max(0.0, (now - order.asked_at).total_seconds()),
                    requests_cut=self.state.counters.requests_cut,
                )

    def _watch_engine(self, now: datetime) -> None:
        if not is_over(self._health_at, HEALTH_POLL, now):
            return
        self._health_at = now
        load = self.services.engine.load() if self.services.engine.healthy() else None
        self.state.requests_running = None if load is None else load.running
        self._log_health(load is not None, now)
        if load is not None:
            self.state.engine = self.services.engine.identity()
            self._unwell_since = None
            return
        self._unwell_since = min(self._unwell_since or now, now)
        self._repair(now, self._unwell_since)

    def _log_health(self, well: bool, now: datetime) -> None:
        if well and not self.state.engine_healthy:
            unwell_s = (now - (self._unwell_since or now)).total_seconds()
            self.state.log.info("engine", outcome="healthy", duration_s=unwell_s)
        elif self.state.engine_healthy and not well:
            self.state.log.warning("engine", outcome="unhealthy")
        self.state.engine_healthy = well

    def _repair(self, now: datetime, unwell_since: datetime) -> None:
        """Restart an engine that systemd no longer restarts. Fail the instance after too many starts or too long."""
        self._repair_gate()
        unit_state = self.services.units.state(engine_container.UNIT)
        starts = self.state.counters.engine_starts
        if unit_state in (UnitState.FAILED, UnitState.INACTIVE):
            self.state.log.error("engine", outcome="crashed", starts=starts)
            if starts > RESTARTS:
                self.state.enter(Phase.FAILED, f"the engine stopped again after {starts} starts")
                return
            self.state.counters.engine_starts += 1
            try:
                self.services.units.start(engine_container.UNIT)
            except StepError as error:
                self.state.warn("engine", str(error))
            else:
                self.state.log.info("engine", outcome="started", starts=starts + 1)
        if now - unwell_since >= self.settings.boot_limits.engine:
            limit = self.settings.boot_limits.engine.total_seconds()
            self.state.enter(Phase.FAILED, f"the engine was not healthy for {limit:.0f} s")

    def _repair_gate(self) -> None:
        """Start a gate that systemd no longer restarts."""
        if engine_container.launch_of(self.settings.engine.kind).gate is None:
            return
        if self.services.units.state(engine_gate.UNIT) in (UnitState.FAILED, UnitState.INACTIVE):
            self.state.log.error("gate", outcome="crashed")
            try:
                self.services.units.start(engine_gate.UNIT)
            except StepError as error:
                self.state.warn("gate", str(error))

    def _watch_failure(self, now: datetime) -> None:
        """Power off a failed instance after `power_off_after`: it costs money, but operators need time to inspect."""
        if now - self.state.since >= self.settings.power_off_after and not self._powered_off:
            self._powered_off = True
            self.power_off()
