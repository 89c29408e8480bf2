"""The frame of all simulated exporters: faults, samples of the machine's engine, counters, and the HTTP server.

An exporter looks at the machine's engine about once a second. Files in the machine's folder of faults silence,
freeze, divide or damage it while it runs.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpufleet.http_server import Answer, HttpRequest, HttpServer, Routes
from localcloud.exporters.engine_work import EngineProbe, Work
from localcloud.exporters.metadata import Hardware
from localcloud.faults import EXPORTER_FAULTS, FAULT_FOLDER
from localcloud.same_user import LIMITS, refused
from serving.exposition import CONTENT_TYPE, Sample, render_family

SAMPLE_S: Final = 1.0
_IDLE_SHARE: Final = 0.18
"""Power of a device that holds a context and computes nothing, as a share of its limit."""
_MEMORY_SHARE: Final = 0.92
"""Share of device memory that an engine takes, whatever the model's size."""


@dataclass(frozen=True, slots=True)
class ExporterFaults:
    """The faults that are on, with the text of their files."""

    on: Mapping[str, str] = field(default_factory=dict[str, str])

    def __contains__(self, name: str) -> bool:
        return name in self.on

    def number(self, name: str, default: float) -> float:
        """The number of a fault; `default` if it is off. A fault without a number has 1."""
        return float(self.on[name] or 1) if name in self.on else default

    def numbers(self, name: str) -> tuple[float, ...]:
        """The numbers of a fault, separated by commas; none if it is off."""
        return tuple(float(part) for part in self.parts(name))

    def parts(self, name: str) -> tuple[str, ...]:
        """The words of a fault, separated by commas; none if it is off."""
        return tuple(part for part in self.on.get(name, "").split(",") if part)

    def has(self, word: str) -> bool:
        """Whether the exporter has this variant."""
        return word in self.parts("exporter-variant")


def read_faults(folder: Path) -> ExporterFaults:
    """The faults of an exporter that are on."""
    found: dict[str, str] = {}
    for name in EXPORTER_FAULTS:
        try:
            found[name] = (folder / name).read_text("utf-8").strip()
        except FileNotFoundError:
            continue
    return ExporterFaults(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedUnit:
    """A schedulable unit of a machine: a device, or a part of one."""

    device: int
    share: float = 1.0
    """Its share of the device's computing power."""
    profile: str = ""
    number: str = ""
    """Its number on the device, as the exporter reports it."""
    serves: bool = True
    """Whether the machine's engine runs on it."""


@dataclass(slots=True)
class UnitState:
    """What a unit did."""

    active: float = 0.0
    executions: float = 0.0
    idle_s: float = 0.0
    """Since it last computed."""


@dataclass(slots=True)
class MachineState:
    """What the accelerators of a machine do now."""

    units: Sequence[SimulatedUnit]
    of_unit: list[UnitState]
    joules: list[float]
    """Of each device, since its driver was loaded."""
    work: Work = field(default_factory=Work)
    held: bool = False
    """Whether a program holds the accelerators: the engine, or one that the fault `gpu-active` stands for."""
    seconds: float = 0.0
    """Since the exporter started."""
    runtime: int = 0
    """Which start of that program this is."""

    def active(self, device: int) -> float:
        """Share of a whole device's computing power in use."""
        parts = zip(self.units, self.of_unit, strict=True)
        return min(1.0, sum(unit.share * state.active for unit, state in parts if unit.device == device))


def watts(hardware: Hardware, active: float) -> float:
    """Power of a device with this activity."""
    return hardware.watts * (_IDLE_SHARE + (1 - _IDLE_SHARE) * 0.9 * active)


def used_mib(free_mib: float, held: bool) -> int:
    """Memory in use, of the memory that programs can have."""
    return int(free_mib * _MEMORY_SHARE) if held else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterKind:
    """What is specific to the exporter of one kind of accelerator."""

    kind: str
    """The accelerator kind of the catalogue."""
    product: str
    units: Callable[[Hardware, ExporterFaults], Sequence[SimulatedUnit]]
    """Raises ValueError for a division that the hardware does not have."""
    page: Callable[[Hardware, MachineState, ExporterFaults], str]


@dataclass(slots=True)
class Simulator:
    """Samples the engine and writes the page."""

    kind: ExporterKind
    hardware: Hardware
    engine_url: str
    faults: Path
    probe: EngineProbe = field(init=False)
    state: MachineState = field(init=False)
    _frozen: str | None = field(default=None, init=False)
    _was_reset: bool = field(default=False, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def __post_init__(self) -> None:
        self.probe = EngineProbe(self.engine_url)
        units = self.kind.units(self.hardware, ExporterFaults())
        self.state = MachineState(units, [UnitState() for _ in units], [0.0] * self.hardware.count)

    def read_faults(self) -> ExporterFaults:
        """The faults that are on."""
        return read_faults(self.faults)

    def sample(self, seconds: float) -> None:
        """Sample the engine; `seconds`: the time since the last sample."""
        work = self.probe.sample(seconds)
        with self._lock:
            faults = self.read_faults()
            self._divide(faults)
            held = work.up or "gpu-active" in faults
            if held and not self.state.held:
                self._start_runtime()
            self.state.work, self.state.held = work, held
            if "exporter-reset" in faults and not self._was_reset:
                self.state.joules = [0.0] * self.hardware.count
                self._start_runtime()
            self._was_reset = "exporter-reset" in faults
            self._advance(faults, seconds)

    def page(self) -> str:
        """The present page."""
        with self._lock:
            faults = self.read_faults()
            self._divide(faults)
            if "exporter-frozen" in faults and self._frozen is not None:
                return self._frozen
            text = self.kind.page(self.hardware, self.state, faults)
            self._frozen = text if "exporter-frozen" in faults else None
            return text

    def _divide(self, faults: ExporterFaults) -> None:
        units = self.kind.units(self.hardware, faults)
        if units != self.state.units:
            self.state.units, self.state.of_unit = units, [UnitState() for _ in units]

    def _start_runtime(self) -> None:
        self.state.runtime += 1
        for unit in self.state.of_unit:
            unit.executions = unit.idle_s = 0.0

    def _advance(self, faults: ExporterFaults, seconds: float) -> None:
        given = faults.numbers("gpu-active")
        state = self.state
        state.seconds += seconds
        for index, (unit, now) in enumerate(zip(state.units, state.of_unit, strict=True)):
            if given:
                now.active = given[min(index, len(given) - 1)]
            else:
                now.active = state.work.active if unit.serves else 0.0
            now.executions += round(now.active * 50 * seconds + 0.5) if now.active else 0
            now.idle_s = 0.0 if now.active else now.idle_s + seconds
        for device in range(self.hardware.count):
            state.joules[device] += watts(self.hardware, state.active(device)) * seconds


Series = tuple[Mapping[str, str], float]


def family(name: str, kind: str, meaning: str, series: Iterable[Series]) -> str:
    """Lines of one metric; empty without series."""
    samples = [Sample(name=name, labels=labels, value=value) for labels, value in series]
    return render_family(name, kind, meaning, samples) if samples else ""


def fault_folder() -> Path:
    """The folder of faults of this machine."""
    return Path(os.environ.get("GPUFLEET_ROOT", "/")) / FAULT_FOLDER


def server(address: tuple[str, int], simulator: Simulator) -> HttpServer:
    """Serves the page. Raises OSError when the address is taken."""

    def answer(request: HttpRequest) -> Answer | None:
        found = refused(request, simulator.kind.product)
        if found is None and "exporter" in simulator.read_faults():
            return None
        return found or routes(request)

    routes = Routes(
        {
            "GET /metrics": lambda _: Answer(body=simulator.page(), content_type=CONTENT_TYPE),
            "GET /health": lambda _: Answer(body="OK"),
        }
    )
    product, simulated = f"gpu-fleet-simulated-{simulator.kind.product}", {"X-Simulated": "true"}
    return HttpServer(address, answer, limits=LIMITS, product=product, headers=simulated)


def sample_until(simulator: Simulator, ended: threading.Event) -> None:
    """Sample about once a second until the event is set."""
    last = time.monotonic()
    while not ended.wait(SAMPLE_S):
        now = time.monotonic()
        simulator.sample(now - last)
        last = now


def run(simulator: Simulator, address: tuple[str, int]) -> int:
    """Serve until ended."""
    hardware = simulator.hardware
    server(address, simulator).start("page")
    print(
        f"simulated {simulator.kind.product}: {hardware.count} x {hardware.name} on {address[0]}:{address[1]}; "
        "simulated, without an accelerator",
        file=sys.stderr,
        flush=True,
    )
    sample_until(simulator, threading.Event())
    return 0
