"""A world for the node agent that is all in memory, with a clock that tests move."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.rsa import public_key
from hosts.node import stopping
from hosts.node.agent import Agent
from hosts.node.boot import Boot, World
from hosts.node.life import Life
from hosts.node.log import Log
from hosts.node.orders import Nonces, Orders
from hosts.node.ports import CloudNotice, EngineLoad, StepError, UnitState
from hosts.node.switch import Switch
from serving import engine as engines
from serving.cache.store import FolderStore, Store
from serving.engine import EngineKind
from serving.instance_settings import BootLimits, EngineSettings, InstanceSettings
from tests import signing

START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


@dataclass(slots=True)
class FakeClock:
    """Stands still but for `sleep` and `pass_`."""

    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass(slots=True)
class FakeUnits:
    """systemd in a dictionary."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    states: dict[str, UnitState] = field(default_factory=dict[str, UnitState])
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    on_stop: Callable[[str], UnitState] = lambda _name: UnitState.INACTIVE
    on_start: Callable[[str], UnitState] = lambda _name: UnitState.ACTIVE

    def install(self, name: str, text: str) -> bool:
        new = self.texts.get(name) != text
        self.texts[name] = text
        return new

    def start(self, name: str) -> None:
        self.calls.append(("start", name))
        self.states[name] = self.on_start(name)

    def stop(self, name: str) -> None:
        self.calls.append(("stop", name))
        self.states[name] = self.on_stop(name)

    def kill(self, name: str) -> None:
        self.calls.append(("kill", name))
        self.states[name] = UnitState.INACTIVE

    def state(self, name: str) -> UnitState:
        return self.states.get(name, UnitState.INACTIVE)


@dataclass(slots=True)
class FakeDisks:
    """Fails as often as told."""

    failures: int = 0
    prepared: list[str] = field(default_factory=list[str])
    count: int = 1

    def prepare(self, mount_point: str) -> int:
        if self.failures:
            self.failures -= 1
            raise StepError("mkfs.xfs: exit code 1: no such device")
        self.prepared.append(mount_point)
        return self.count


@dataclass(slots=True)
class FakeCloud:
    """A cloud that says what tests put here."""

    bucket: Path
    instance_id: str = "i-0123456789abcdef0"
    address: str = "127.0.0.1"
    machine_type: str = "g6.xlarge"
    said: list[CloudNotice] = field(default_factory=list[CloudNotice])
    refuses: bool = False
    engine_key: str = signing.ENGINE_KEY

    def notices(self) -> list[CloudNotice]:
        self._answer()
        return list(self.said)

    def secret(self, where: str) -> str:
        self._answer()
        assert where == "ssm:/engine-key", "an instance reads no other secret"
        return self.engine_key

    def store(self, bucket: str) -> Store:
        return FolderStore(self.bucket)

    def _answer(self) -> None:
        if self.refuses:
            raise ConnectionError("the cloud does not answer")


@dataclass(slots=True)
class FakeEngine:
    """An engine whose load tests set."""

    units: FakeUnits
    running: float = 0
    waiting: float = 0
    silent: bool = False
    warm_ups: int = 0
    keys: list[str] = field(default_factory=list[str])
    """That its first requests came with."""
    refuses: str | None = None

    def healthy(self) -> bool:
        return not self.silent and self.units.state(engines.UNIT) is UnitState.ACTIVE

    def load(self) -> EngineLoad | None:
        return EngineLoad(running=self.running, waiting=self.waiting) if self.healthy() else None

    def warm_up(self, key: str) -> None:
        if self.refuses:
            raise StepError(self.refuses)
        self.keys.append(key)
        self.warm_ups += 1


def settings(**changes: object) -> InstanceSettings:
    """Those of a pool `chat`."""
    base = InstanceSettings(
        environment="test",
        cloud=Cloud.AWS,
        region="us-east-1",
        pool="chat",
        capacity_type=CapacityType.SPOT,
        group=None,
        bucket="s3://models",
        model="models/chat",
        served_name="chat",
        engine=EngineSettings(kind=EngineKind.VLLM, image="engine@sha256:0", args=(), env={}),
        dcgm_image="dcgm-exporter@sha256:1",
        engine_key="ssm:/engine-key",
        order_keys=(signing.key().public.text,),
        cache_dir="/mnt/nvme/models",
        drain_deadline=timedelta(seconds=90),
        drain_margin=timedelta(seconds=5),
        metadata_poll=timedelta(seconds=5),
        power_off_after=timedelta(minutes=15),
        boot_limits=BootLimits(
            disks=timedelta(seconds=60),
            cache=timedelta(minutes=30),
            engine=timedelta(minutes=15),
            warm_up=timedelta(minutes=2),
        ),
    )
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


@dataclass(slots=True, kw_only=True)
class Machine:
    """An instance with its agent, all fake but for files."""

    root: Path
    bucket: Path
    settings: InstanceSettings = field(default_factory=settings)
    clock: FakeClock = field(default_factory=FakeClock)
    units: FakeUnits = field(default_factory=FakeUnits)
    disks: FakeDisks = field(default_factory=FakeDisks)
    powered_off: int = 0
    lines: list[str] = field(default_factory=list[str])
    """Logged by its agents."""
    cloud: FakeCloud = field(init=False)
    engine: FakeEngine = field(init=False)
    life: Life = field(init=False)
    boot: Boot = field(init=False)
    agent: Agent = field(init=False)
    switch: Switch = field(init=False)
    orders: Orders = field(init=False)

    def __post_init__(self) -> None:
        self.cloud = FakeCloud(self.bucket)
        self.engine = FakeEngine(self.units)
        self.restart_agent()

    def restart_agent(self) -> None:
        """The agent died and systemd started it again."""
        self.life = Life(
            instance=self.cloud.instance_id,
            pool=self.settings.pool,
            file=self.root / "var/lib/gpu-fleet/agent.json",
            now=self.clock,
            log=Log(
                now=self.clock,
                write=self.lines.append,
                environment=self.settings.environment,
                pool=self.settings.pool,
                resource=self.cloud.instance_id,
            ),
        )
        self.life.engine_stops = stopping.place(self.root)
        self.orders = Orders(
            instance=self.cloud.instance_id,
            keys=[public_key(text) for text in self.settings.order_keys],
            nonces=Nonces(self.root / "var/lib/gpu-fleet/orders.json", self.clock, self.life.warn),
            now=self.clock,
        )
        self.life.order_keys = self.orders.fingerprints
        world = World(
            units=self.units,
            disks=self.disks,
            cloud=self.cloud,
            engine=self.engine,
            root=self.root,
            sleep=self.clock.sleep,
        )
        self.boot = Boot(settings=self.settings, world=world, life=self.life)
        self.agent = Agent(settings=self.settings, world=world, life=self.life, power_off=self._power_off)
        self.switch = Switch(boot=self.boot, settle=timedelta(seconds=3))

    def _power_off(self) -> None:
        self.powered_off += 1

    def pass_time(self, duration: timedelta, step: timedelta = timedelta(seconds=0.5)) -> None:
        """Let the agent tick for a while."""
        until = self.clock.now + duration
        while self.clock.now < until:
            self.agent.tick()
            self.clock.now += step

    def since_start(self) -> float:
        """Seconds since the clock's start."""
        return (self.clock.now - START).total_seconds()
