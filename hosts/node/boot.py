"""The boot: disks → cache → engine → warm-up → ready. Steps are idempotent, retried and limited in time."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Final

from gpufleet.domain.model import Phase
from gpufleet.logs import hide
from hosts.node import disks, driver, engine_key, gate, health, stop_marker
from hosts.node.log import timed
from hosts.node.ports import (
    CloudServices,
    Disks,
    EngineClient,
    PermanentError,
    StepError,
    StoppedError,
    Units,
    UnitState,
)
from hosts.node.state import BootStep, NodeState
from serving import engine_container, engine_gate, exporter_units
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.accelerators.contract import AcceleratorContract
from serving.cache.approval import check_approved
from serving.cache.disk import Cache, CacheError, NoSpaceError
from serving.cache.manifest import ADAPTER_CONFIG, ManifestError
from serving.cache.sync import CorruptError, Progress, Sync, served_digest
from serving.engines.launch import ArgumentError, EngineServer
from serving.instance_settings import InstanceSettings

ATTEMPTS: Final = 6
"""Attempts of one step; its time limit may end it earlier."""
_BACKOFF_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_LOOK_AGAIN_S: Final = 0.25
_LOOKS_PER_STATE: Final = 6


@dataclass(slots=True, kw_only=True)
class NodeServices:
    """The services of the machine and of the cloud that the agent uses."""

    units: Units
    disks: Disks
    cloud: CloudServices
    engine: EngineClient
    root: Path
    """Prefix of each absolute path; `/` on a real machine."""
    agent: tuple[str, ...] = ()
    """The command that runs this program, before its arguments."""
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True, kw_only=True)
class BootSequence:
    """The boot of one instance."""

    settings: InstanceSettings
    services: NodeServices
    state: NodeState
    lease: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Protects the served revision from eviction while the agent runs."""
    _model: Path | None = field(default=None, init=False)
    _adapters: dict[str, Path] = field(default_factory=dict[str, Path], init=False)
    """Folders of the adapters by their names in requests."""
    _key: str | None = field(default=None, init=False, repr=False)
    """The engine's API key. Read once, so that it stays the key with which the engine was started."""

    def run(self) -> bool:
        """Boot the instance. False if it fails or a drain starts. Never raises for machine or cloud errors."""
        limits = self.settings.boot_limits
        steps: list[tuple[Phase, Callable[[datetime], None], timedelta]] = [
            (Phase.DISKS, self._disks, limits.disks),
            (Phase.CACHE, self._cache, limits.cache),
            (Phase.ENGINE, self._engine, limits.engine),
            (Phase.WARM_UP, self._warm_up, limits.warm_up),
        ]
        if self._adopt_running_engine():
            return True
        try:
            self._check_driver()
            for phase, action, limit in steps:
                self._run_step(phase, action, limit)
        except StoppedError:
            return False
        except StepError as error:
            self.state.enter(Phase.FAILED, str(error))
            return False
        self.state.engine_healthy = True
        self.state.enter(Phase.READY)
        return True

    def replace_engine(self, digest: str, path: Path) -> None:
        """Serve another revision, stored at `path`. Raises StepError, StoppedError; the engine is not ready then."""
        limits = self.settings.boot_limits
        self._model = path
        self.state.serve(digest)
        self.lease.enter_context(Cache(self.cache_root).lease(digest))
        self._run_step(Phase.ENGINE, self._engine, limits.engine)
        self._run_step(Phase.WARM_UP, self._warm_up, limits.warm_up)
        self.state.engine_healthy = True
        self.state.enter(Phase.READY)

    def _adopt_running_engine(self) -> bool:
        """Return whether only the agent restarted: engine and model still run, and are left undisturbed."""
        state = self.state
        if (
            not state.has_served
            or state.digest is None
            or state.order is not None
            or not self.services.engine.healthy()
            or not self._gate_runs()
        ):
            return False
        cache = Cache(self.cache_root)
        self._model = cache.find_digest(state.digest)
        served = {name: state.adapters[name] for name in self.settings.adapters if name in state.adapters}
        found = {name: path for name, digest in served.items() if (path := cache.find_digest(digest)) is not None}
        if self._model is None or found.keys() != self.settings.adapters.keys():
            return False
        self._adapters = found
        for digest in (state.digest, *served.values()):
            self.lease.enter_context(cache.lease(digest))
        state.engine_healthy = True
        state.enter(Phase.READY)
        return True

    def _run_step(self, phase: Phase, action: Callable[[datetime], None], limit: timedelta) -> None:
        self._check_not_draining()
        step = self.state.begin_step(phase)
        with timed(self.state.log, "boot_step", step=phase.value) as line:
            try:
                self._run_with_retries(step, action, step.started + limit)
            finally:
                line["attempts"] = step.attempts

    def _run_with_retries(self, step: BootStep, action: Callable[[datetime], None], deadline: datetime) -> None:
        while True:
            step.attempts += 1
            try:
                action(deadline)
            except PermanentError as error:
                self._end_step(step, str(error))
                raise
            except StepError as error:
                self._end_step(step, str(error))
                wait_s = _BACKOFF_S[min(step.attempts, len(_BACKOFF_S)) - 1]
                if step.attempts >= ATTEMPTS or self.state.now() + timedelta(seconds=wait_s) >= deadline:
                    raise StepError(f"{step.phase.value} failed after {step.attempts} attempts: {error}") from error
                self._pause(wait_s)
            else:
                self._end_step(step, None)
                return

    def _end_step(self, step: BootStep, error: str | None) -> None:
        step.ended, step.error = self.state.now(), error

    def _check_not_draining(self) -> None:
        if self.state.order is not None:
            raise StoppedError

    def _pause(self, seconds: float) -> None:
        # Count sleeps instead of reading the clock: a clock that is set back during the boot would extend the pause.
        for _ in range(round(seconds / _LOOK_AGAIN_S)):
            self._check_not_draining()
            self.services.sleep(_LOOK_AGAIN_S)

    def _check_driver(self) -> None:
        """Raise PermanentError if the driver is missing or too old. An unknown version does not prevent the boot."""
        if why := driver.why_unusable(self.services.root, self._accelerator.launch, self.settings.engine):
            raise PermanentError(why)

    def _disks(self, _deadline: datetime) -> None:
        mount_point = str(PurePosixPath(self.settings.cache_dir).parent)
        found = self.services.disks.prepare(mount_point)
        self.state.warn("disks", disks.missing(found, self.settings.cloud, self.services.cloud.machine_type))

    def _cache(self, deadline: datetime) -> None:
        """Fetch the model and its adapters. Each is leased at once, so that the next one does not evict it."""
        cache, settings = Cache(self.cache_root), self.settings
        digest, self._model = self._fetched(settings.model, f"model {settings.model}", deadline, self.state.serve)
        self.lease.close()
        self.lease.enter_context(cache.lease(digest))
        digests: dict[str, str] = {}
        for name, model in settings.adapters.items():
            what = f"adapter {name}, model {model}"
            digests[name], self._adapters[name] = self._fetched(model, what, deadline)
            self.lease.enter_context(cache.lease(digests[name]))
            if not (self._adapters[name] / ADAPTER_CONFIG).is_file():
                raise PermanentError(f"{what}: has no {ADAPTER_CONFIG}; publish a LoRA adapter in the format of PEFT")
        self.state.serve_adapters(digests)

    def _fetched(
        self, model: str, what: str, deadline: datetime, serve: Callable[[str], None] = lambda _digest: None
    ) -> tuple[str, Path]:
        """Fetch the served revision of a model. Returns its digest and folder. Raises StepError, StoppedError."""
        store = self.services.cloud.store(self.settings.bucket)
        progress = Progress()
        rest = (deadline - self.state.now()).total_seconds()

        def check_time() -> None:
            self._check_not_draining()
            if self.state.now() >= deadline:
                done, size = progress.fetched + progress.kept, progress.total
                raise StepError(f"{what}: {done} of {size} bytes fetched when the time limit was reached")

        sync = Sync(
            store=store,
            cache=Cache(self.cache_root),
            model=model,
            lock_limit_s=max(1.0, rest),
            raise_if_stopped=check_time,
        )
        try:
            digest = served_digest(store, model)
            serve(digest)
            return digest, self.bring(sync, digest, progress)
        except (NoSpaceError, ManifestError) as error:
            raise PermanentError(f"{what}: {error}") from error
        except (CacheError, CorruptError, OSError, ValueError) as error:
            raise StepError(f"{what}: {error}") from error
        finally:
            counters = self.state.counters
            counters.bytes_fetched += progress.fetched
            counters.bytes_kept += progress.kept
            counters.cache_retries += progress.retries

    def bring(self, sync: Sync, digest: str, progress: Progress) -> Path:
        """Fetch a revision into the cache; in production only an approved one. Raises what `Sync.bring` raises."""
        check_approved(sync.store, sync.model, digest, self.settings.environment)
        with timed(self.state.log, "cache", model=sync.model, digest=digest) as line:
            try:
                return sync.bring(digest, self.state.now(), progress)
            finally:
                line |= {
                    "bytes_fetched": progress.fetched,
                    "bytes_kept": progress.kept,
                    "retries": progress.retries,
                }

    @property
    def cache_root(self) -> Path:
        """The folder of the model cache on this machine."""
        return self.settings.cache_under(self.services.root)

    def engine_unit(self) -> str:
        """Return the text of the engine's unit. Raises PermanentError for invalid engine arguments."""
        assert self._model is not None
        settings = self.settings
        host, port = gate.listen_address(settings.engine.kind, self.services.cloud.address)
        container = engine_container.EngineContainer(
            kind=settings.engine.kind,
            image=settings.engine.image,
            env=settings.engine.env,
            accelerator=settings.accelerator,
            server=EngineServer(
                model_path=PurePosixPath(self._model),
                served_name=settings.served_name,
                host=host,
                port=port,
                shutdown_timeout_s=int(settings.drain_deadline.total_seconds()),
                args=settings.engine.args,
                adapters={name: PurePosixPath(path) for name, path in self._adapters.items()},
            ),
        )
        try:
            root = self.services.root
            devices = driver.container_devices(root, self._accelerator.launch)
            return engine_container.engine_unit(
                container,
                cache_dir=PurePosixPath(self.cache_root),
                key_file=PurePosixPath(engine_key.key_path(root)),
                stopping_file=PurePosixPath(stop_marker.path_of(root)),
                devices=devices,
                groups=driver.groups(root, devices),
            )
        except ArgumentError as error:
            raise PermanentError(str(error)) from error

    def _engine(self, deadline: datetime) -> None:
        units = self.services.units
        self._exporter()
        another_key = engine_key.write_key(self.services.root, self.settings.engine.kind, self._engine_key())
        if self._has_gate:
            self._gate(another_key, deadline)
        changed = units.install(engine_container.UNIT, self.engine_unit()) or (another_key and not self._has_gate)
        if self._start_unit(engine_container.UNIT, "engine", changed, deadline):
            self.state.counters.engine_starts += 1
            self.state.log.info("engine", outcome="started", starts=self.state.counters.engine_starts)
        self._node_exporter()
        look = 0
        while not self.services.engine.healthy():
            look += 1
            # A systemd query costs a process; a query of the engine costs almost nothing.
            if look % _LOOKS_PER_STATE == 0 and units.state(engine_container.UNIT) is UnitState.FAILED:
                self.state.log.error("engine", outcome="crashed", starts=self.state.counters.engine_starts)
                hint = driver.hint(self.services.root, self._accelerator.launch)
                raise StepError(
                    f"the engine stopped during its start; the journal of {engine_container.UNIT} has its log{hint}"
                )
            if self.state.now() >= deadline:
                raise StepError("the engine did not become healthy within its time limit")
            self._check_not_draining()
            self.services.sleep(_LOOK_AGAIN_S)
        if self._has_gate and units.state(engine_gate.UNIT) is UnitState.FAILED:
            raise StepError(f"the gate stopped during its start; the journal of {engine_gate.UNIT} has its log")

    @property
    def _accelerator(self) -> AcceleratorContract:
        return ACCELERATORS[self.settings.accelerator]

    @property
    def _has_gate(self) -> bool:
        return engine_container.launch_of(self.settings.engine.kind).gate is not None

    def _gate_runs(self) -> bool:
        return not self._has_gate or self.services.units.state(engine_gate.UNIT) is UnitState.ACTIVE

    def _gate(self, another_key: bool, deadline: datetime) -> None:
        """Start the gate. Restart it if its unit, its configuration or the key changed. Raises StepError."""
        installed = gate.install(self.services.units, self.services.root, self.settings, self.services.cloud.address)
        if self._start_unit(engine_gate.UNIT, "gate", installed or another_key, deadline):
            self.state.log.info("gate", outcome="started")

    def _start_unit(self, unit: str, event: str, changed: bool, deadline: datetime) -> bool:
        """Start a unit that does not run; stop it first if it runs and changed. Return whether it was started.

        `event` is for the log. Raises StepError, StoppedError.
        """
        units, running = self.services.units, (UnitState.ACTIVE, UnitState.ACTIVATING)
        is_running = units.state(unit) in running
        if is_running and changed:
            self.state.log.info(event, outcome="stopping", detail="its unit or key changed")
            units.stop(unit)
            self._wait_for(unit, (UnitState.INACTIVE, UnitState.FAILED), deadline)
        elif is_running:
            return False
        self._check_not_draining()
        units.start(unit)
        return True

    def _engine_key(self) -> str:
        """Return the engine's API key. Raises StepError without one: no engine starts without authentication."""
        if self._key is None:
            place = self.settings.engine_key
            try:
                key = self.services.cloud.secret(place).strip()
            except OSError as error:
                raise StepError(f"the engine's key cannot be read: {error}") from error
            hide(key)
            if not engine_container.is_key(key):
                raise StepError(f"{place}: {engine_container.NO_KEY}")
            self._key = key
        return self._key

    def _exporter(self) -> None:
        """Start the exporter that the watchdogs read. If it fails, the instance serves and shows a warning."""
        launch, image, host = self._accelerator.launch, self.settings.exporter_image, self.services.cloud.address
        text = exporter_units.exporter_unit(launch, image=image, host=host, agent=self.services.agent)
        self._start_second_unit(exporter_units.EXPORTER_UNIT, text, warning="exporter")

    def _node_exporter(self) -> None:
        """Start the exporter of host metrics, if the settings enable it. Operators use these metrics."""
        if (image := self.settings.node_exporter_image) is not None:
            text = exporter_units.node_exporter_unit(image, host=self.services.cloud.address)
            self._start_second_unit(exporter_units.NODE_EXPORTER_UNIT, text, warning="node exporter")

    def _start_second_unit(self, unit: str, text: str, *, warning: str) -> None:
        """Start a unit that the engine does not need. An error becomes a warning of the instance."""
        units = self.services.units
        try:
            units.install(unit, text)
            if units.state(unit) is not UnitState.ACTIVE:
                units.start(unit)
            self.state.warn(warning, None)
        except StepError as error:
            self.state.warn(warning, str(error))

    def _wait_for(self, unit: str, states: tuple[UnitState, ...], deadline: datetime) -> None:
        while self.services.units.state(unit) not in states:
            if self.state.now() >= deadline:
                raise StepError(f"{unit} did not become {states[0]} within its time limit")
            self.services.sleep(_LOOK_AGAIN_S)

    def _warm_up(self, _deadline: datetime) -> None:
        self.services.engine.warm_up(self._engine_key())
        cloud = self.services.cloud
        expected = health.expected_gpus(self.settings.cloud, cloud.machine_type)
        report = health.check(self._accelerator, cloud.address, expected)
        if report.broken:
            raise PermanentError(f"GPU: {report.broken}")
        self.state.warn("gpu", report.unknown)
