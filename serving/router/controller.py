"""The loop that keeps HAProxy in line with the fleet: document, policy, inventory, servers, errors."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Final

from gpufleet.domain.files import write_atomically
from gpufleet.logs import Log, log_change
from serving.router import breaker, engine_key, maps, membership
from serving.router.activator import Activator, HoldRules
from serving.router.certificates import Certificate
from serving.router.exporter import RouterSnapshot, metrics
from serving.router.meter import Meter
from serving.router.process import Haproxy, check_config
from serving.router.render import render
from serving.router.runtime import ServerStatus
from serving.router.settings import RouterPaths, RouterSettings
from serving.router.sources import FleetSource, RouterInputs, RouterSources
from serving.router.status import describe
from serving.router.topology import Replica, replicas_of

STILL_USED: Final = "still has connections"
"""Text of HAProxy's answer when it refuses to delete a server."""
RESUME_LOOKS: Final = 30
RESUME_EVERY_S: Final = 0.1


class RouterBusyError(RuntimeError):
    """Another controller uses this state folder."""


@dataclass(slots=True)
class Controller:
    """Controls one HAProxy."""

    fleet: FleetSource
    settings: RouterSettings
    paths: RouterPaths
    log: Log
    read_every_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    breaker_rules: breaker.BreakerRules = field(default_factory=breaker.BreakerRules)
    problems: dict[str, str] = field(default_factory=dict[str, str])
    """Current problems, by component."""
    haproxy: Haproxy = field(init=False)
    meter: Meter = field(init=False)
    activator: Activator = field(init=False)
    certificate: Certificate = field(init=False)
    reloads: int = 0
    _sources: RouterSources = field(init=False)
    _inputs: RouterInputs = field(default_factory=RouterInputs)
    _maps: maps.Maps = field(default_factory=dict[maps.Map, dict[str, str]])
    _shape: tuple[str, str] = field(default=("", ""), repr=False)
    """The running configuration without its servers, and the engine key. A change of either needs a reload."""
    _wanted: tuple[Replica, ...] = ()
    _shown: tuple[ServerStatus, ...] = ()
    _memory: membership.MembershipState = field(default_factory=membership.MembershipState)
    _breaker: breaker.BreakerState = field(default_factory=breaker.BreakerState)
    _read_at: float | None = None

    def __post_init__(self) -> None:
        self.haproxy = Haproxy(self.paths)
        self.meter = Meter(self.paths.access_log, self.paths.meter)
        self.activator = Activator(self.paths.state, self.metrics)
        self.certificate = Certificate(self.settings.certificate, self.paths.state)
        self._sources = RouterSources(self.fleet, self.paths, self.note)
        if self.meter.lost:
            self.log.warning("counters", outcome="lost", detail=self.meter.lost)

    def start(self) -> None:
        """Start HAProxy with the last router's inputs, or without pools: it answers 503 until a document arrives."""
        self._inputs = self._sources.kept()
        if self._inputs.document is None:
            self.log.info("fleet_document", outcome="waiting", detail="requests get 503 until a document is read")
        self.certificate.prepare(time.time())
        self.activator.start()
        self._start_haproxy()
        self.log.info("process", outcome="started", detail="HAProxy accepts requests", listen=self.settings.bind)
        self._resume()

    def _resume(self) -> None:
        """Start with the last router's replicas: a throttled cloud may need minutes to list its instances."""
        self._wanted = self._sources.kept_replicas(self._inputs.topology, time.time())
        known = {replica.pool for replica in self._wanted}
        if not known:
            return
        self.log.info(
            "replicas",
            outcome="resumed",
            count=len(self._wanted),
            detail="replicas of the last router are used until the inventory is read",
        )
        # the activator holds requests that arrive meanwhile, until a check finds a healthy replica
        for _ in range(RESUME_LOOKS):
            self._reconcile_servers()
            if known <= {server.pool for server in self._shown if server.ready}:
                break
            time.sleep(RESUME_EVERY_S)

    def tick(self) -> None:
        """Run all steps once. A failed step does not stop the others, because HAProxy ends with its controller."""
        steps = (
            self._keep_running,
            self._read_inputs,
            self._update_maps,
            self._renew_certificate,
            self._inventory,
            self._reconcile_servers,
            self._read_access_log,
            self._write_status,
        )
        self.note("pass", "; ".join(error for step in steps if (error := _try(step))))

    def stop(self, grace_s: float) -> None:
        """Accept no more connections, wait up to `grace_s` seconds for requests, then stop."""
        self.haproxy.stop(grace_s)
        self.activator.stop()
        self._read_access_log()

    def describe(self) -> Mapping[str, object]:
        """Return the data for `gpufleet router status`."""
        excluded = self._breaker.excluded
        return describe(self._inputs, self._shown, excluded, self.settings, self.problems, self.reloads) | {
            "held": dict(self.activator.held())
        }

    def metrics(self) -> str:
        """Return the page for Prometheus. The activator's thread calls this."""
        pools = [pool.name for pool in self._inputs.topology.pools]
        shown, excluded = self._shown, self._breaker.excluded
        moment = RouterSnapshot(
            held=dict.fromkeys(pools, 0) | dict(self.activator.held()),
            ready={pool: sum(s.pool == pool and s.ready for s in shown) for pool in pools},
            known={pool: sum(s.pool == pool for s in shown) for pool in pools},
            excluded={pool: sum((s.backend, s.name) in excluded for s in shown if s.pool == pool) for pool in pools},
            problems={what: bool(text) for what, text in self.problems.copy().items()},
            reloads=self.reloads,
            certificate_ends=self.certificate.ends,
        )
        return metrics(self.meter, moment)

    def note(self, what: str, text: str) -> None:
        """Record a problem; log it when it starts, changes or ends. An empty text means no problem."""
        log_change(self.log, what, self.problems.get(what), text)
        self.problems[what] = text

    def _start_haproxy(self) -> None:
        # Without servers: HAProxy treats each as UP until its first check. The admin socket adds them.
        self._maps = self._wanted_maps(self._inputs)
        self._shape = self._shape_of(self._inputs)
        self._write_config(self._maps, *self._shape)
        # requests before the first tick wait in the activator, which refuses unknown pools
        self._shown = ()
        self._update_activator(self._inputs)
        self.haproxy.start()
        self._memory, self._breaker = membership.MembershipState(), breaker.BreakerState()

    def _keep_running(self) -> None:
        if self.haproxy.running:
            return
        self.log.error("haproxy", outcome="crashed", detail="HAProxy exited unexpectedly; restarting it")
        try:
            self._start_haproxy()
            self.note("haproxy", "")
        except OSError as error:
            self.note("haproxy", str(error))

    def _read_inputs(self) -> None:
        """Read all inputs. A new configuration is applied completely and at once, or not at all."""
        now = self.clock()
        waiting = self._inputs.document is None
        if self._read_at is not None and not waiting and now - self._read_at < self.read_every_s:
            return
        self._read_at = now
        inputs = self._sources.read(self._inputs)
        shape = self._shape_of(inputs)
        if shape != self._shape and not self._reload(inputs, shape):
            return
        self.note("config", "")
        if inputs != self._inputs:
            self._inputs = inputs
            self._sources.keep(inputs)

    def _shape_of(self, inputs: RouterInputs) -> tuple[str, str]:
        return render(inputs.topology, inputs.policy, (), self.settings), inputs.engine_key

    def _reload(self, inputs: RouterInputs, shape: tuple[str, str]) -> bool:
        """Reload HAProxy with a new configuration. If HAProxy refuses it, the running one stays."""
        wanted = self._wanted_maps(inputs)
        try:
            there = {server.name for server in self.haproxy.admin.servers()}
            pools = {pool.name for pool in inputs.topology.pools}
            replicas = [r for r in self._wanted if r.pool in pools and r.name in there]
            text = render(inputs.topology, inputs.policy, replicas, self.settings)
            self._write_config(wanted, text, inputs.engine_key)
            self._update_activator(inputs)  # requests may reach it as soon as HAProxy has the new pools
            self.haproxy.reload()
        except OSError as error:
            self._write_maps(self._maps)
            engine_key.write(self.paths.engine_key, self._shape[1])
            self.note("config", f"configuration not changed: {error}")
            return False
        self._shape, self._maps = shape, wanted
        self.reloads += 1
        self.log.info("pools", outcome="changed", pools=[pool.name for pool in inputs.topology.pools])
        return True

    def _wanted_maps(self, inputs: RouterInputs) -> maps.Maps:
        return maps.build(
            inputs.topology, inputs.policy, inputs.keys, maps.LiveValues(p95_ms=self.meter.p95_ms(time.time()))
        )

    def _write_maps(self, wanted: maps.Maps) -> None:
        (self.paths.state / maps.FOLDER).mkdir(exist_ok=True, mode=0o700)
        for name, entries in wanted.items():
            write_atomically(self.paths.state / name.file, maps.render_map(entries).encode())

    def _write_config(self, wanted: maps.Maps, text: str, key: str) -> None:
        self._write_maps(wanted)
        engine_key.write(self.paths.engine_key, key)
        if not self.paths.server_state.exists():
            self.paths.server_state.write_text("1\n")
        self.paths.candidate.write_text(text)
        check_config(self.paths.candidate)
        self.paths.candidate.replace(self.paths.config)

    def _update_maps(self) -> None:
        """Change maps in the running HAProxy and on disk, so that a reload does not restore old entries."""
        wanted = self._wanted_maps(self._inputs)
        commands = maps.changes(self._maps, wanted)
        if not commands:
            return
        try:
            self.haproxy.admin.ask(*commands)
            self._write_maps(wanted)
            self._maps = wanted
            self.note("maps", "")
        except OSError as error:
            self.note("maps", f"maps: {error}")

    def _inventory(self) -> None:
        if self._inputs.document is None:
            return
        try:
            instances = self.fleet.instances(self._inputs.document)
            self._wanted = replicas_of(instances, self._inputs.topology)
            self._sources.keep_replicas(self._wanted, time.time())
            self.note("inventory", "")
        except OSError as error:
            self.note("inventory", f"inventory: {error}; keeping the current servers")

    def _reconcile_servers(self) -> None:
        rules = membership.MembershipRules(
            settings=self.settings,
            policy=self._inputs.policy,
            silent=self.settings.agent_silent_limit,
            unreachable=self.settings.unreachable_limit,
            cut=self.settings.response_timeout,
        )
        try:
            self._shown = self.haproxy.admin.servers()
            if self._inputs.document is not None:
                # without an inventory, use the last one: HAProxy may have restarted without servers
                pools = {pool.name for pool in self._inputs.topology.pools}
                wanted = [replica for replica in self._wanted if replica.pool in pools]
                changes, self._memory = membership.plan(
                    wanted, self._shown, self._memory, rules=rules, now=self.clock()
                )
                for change in changes:
                    answer = self.haproxy.admin.ask(*change.commands)
                    if STILL_USED not in answer:  # its last idle connections end within seconds
                        self.log.info("replica", resource=change.server, outcome=change.step, detail=answer or None)
            self._judge()
            self.note("admin socket", "")
        except OSError as error:
            self.note("admin socket", f"admin socket: {error}")
        self._update_activator(self._inputs)

    def _update_activator(self, inputs: RouterInputs) -> None:
        rules = {pool.name: inputs.policy.pool(pool.name) for pool in inputs.topology.pools}
        self.activator.update(
            {name: HoldRules(most=rule.hold, seconds=rule.hold_seconds) for name, rule in rules.items()},
            {name: sum(server.ready for server in self._shown if server.pool == name) for name in rules},
        )

    def _renew_certificate(self) -> None:
        try:
            self.certificate.renew(self.haproxy.admin, time.time(), self.log)
            self.note("certificate", "")
        except OSError as error:
            self.note("certificate", f"{error}; the old one is kept")

    def _judge(self) -> None:
        changes, self._breaker = breaker.judge(self._shown, self._breaker, self.breaker_rules, self.clock())
        for change in changes:
            self.haproxy.admin.ask(change.command)
            self.log.info("replica_weight", resource=change.path, percent=change.percent, detail=change.why)

    def _read_access_log(self) -> None:
        try:
            self.meter.read()
            self.note("log", "")
        except OSError as error:
            self.note("log", f"access log: {error}")

    def _write_status(self) -> None:
        write_atomically(self.paths.status, json.dumps(self.describe(), indent=2).encode() + b"\n")


def _try(step: Callable[[], None]) -> str:
    """Run a step; return its error, or "". For a full disk and bugs: each step reports its other errors itself."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - an error in one step must not stop the router
        return f"{step.__name__.strip('_')}: {error!r}"
    return ""


@contextmanager
def exclusive_state(paths: RouterPaths) -> Generator[None]:
    """Lock the state folder. Raises RouterBusyError: two controllers would revert each other's changes."""
    paths.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with paths.lock.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RouterBusyError(
                f"{paths.state}: another router controller (process {_holder(lock)}) uses this folder; "
                "stop it, or start this one with another --state"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _holder(lock: IO[str]) -> str:
    lock.seek(0)
    return lock.read(32).strip() or "unknown"
