"""The observations of real engines, of the simulated engine and of the report models, and their differences."""

import socket
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.engine.reports import REPORTS
from localcloud.engine.reports.base import EngineReport
from localcloud.engine.reports.triton import TritonPythonReport
from localcloud.engine_environment import ENVIRONMENTS

from benchmarks.comparison import recording
from benchmarks.comparison.compare import Difference, compared, differences, facts, violations
from benchmarks.comparison.http_player import HttpPlayer
from benchmarks.comparison.model_player import ModelPlayer
from benchmarks.comparison.player import Observation, contract_of, release
from benchmarks.comparison.running import RunningEngine, running
from benchmarks.comparison.schedule import play
from benchmarks.table import Table
from gpufleet.toolchain.folders import ROOT
from localcloud import tiny_model

RECORDED: Final = ROOT / "tests" / "recorded" / "engines"
KINDS: Final = ("vllm", "sglang", "triton")
SIMULATED: Final = ("vllm", "sglang")
"""Engines whose API the simulated engine has."""


def observe(kind: str, folder: Path, *, is_real: bool) -> list[Observation]:
    """Play the runs on a process, which is started in `folder`.

    Raises:
        RuntimeError: the process did not become ready.
        EngineEnvironmentError: the real engine cannot be installed.
    """
    if is_real:
        ENVIRONMENTS[kind].install(lambda line: print(line, file=sys.stderr, flush=True))
    starts = iter(range(10))
    ports = _free_ports()

    def start() -> AbstractContextManager[RunningEngine]:
        name = f"{kind}-{'real' if is_real else 'simulated'}-{next(starts)}"
        model = folder / name
        if kind != "triton":
            tiny_model.make(model)
        return running(kind, model, folder / f"{name}.log", ports, is_real=is_real)

    with closing(HttpPlayer(kind, release(kind), start)) as player:
        play(player)
        return player.observations


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def model(kind: str) -> list[Observation]:
    """Play the runs on the report model."""
    report: type[EngineReport] = TritonPythonReport if kind == "triton" else REPORTS[kind]
    player = ModelPlayer(kind, report)
    play(player)
    return player.observations


def not_modelled(kind: str, observations: Sequence[Observation]) -> set[str]:
    """Series that a simulator leaves out because neither evidence nor tokens need them."""
    contract = contract_of(kind)
    pages = "".join(one.page for one in observations)
    needed = {*contract.evidence.work, *contract.evidence.idle}
    return {
        series.name
        for series in compared(contract, release(kind))
        if series.name not in pages and series.measures not in needed
    }


def compare(kind: str, real: Sequence[Observation], other: Sequence[Observation]) -> list[Difference]:
    """Return the differences between a real engine and one of its simulators."""
    contract, version = contract_of(kind), release(kind)
    found = facts(contract, version, real), facts(contract, version, other)
    return differences(*found, not_modelled(kind, other))


def check(kind: str, real: Sequence[Observation]) -> list[Difference]:
    """Return the claims of the contract that the real engine refutes."""
    return violations(contract_of(kind), release(kind), real)


def recorded(kind: str, folder: Path = RECORDED) -> Path:
    """The file with the observations of a real engine."""
    return folder / f"{kind}-{release(kind)}-runs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The comparison of a real engine with its contract or with a simulator."""

    kind: str
    subject: str
    runs: int
    pages: int
    differences: Sequence[Difference]


def results(kind: str, real: Sequence[Observation], simulated: Sequence[Observation] = ()) -> list[Result]:
    """Compare the observations of a real engine with its contract, its report model and the simulated engine."""
    found = {"contract": check(kind, real), "report model": compare(kind, real, model(kind))}
    if simulated:
        found["simulated engine"] = compare(kind, real, simulated)
    runs = len({one.run for one in real})
    return [
        Result(kind=kind, subject=subject, runs=runs, pages=len(real), differences=lines)
        for subject, lines in found.items()
    ]


def of_recorded() -> list[Result]:
    """Compare the recorded observations of all real engines."""
    return [one for kind in KINDS for one in results(kind, recording.read(recorded(kind)))]


def table(found: Sequence[Result]) -> Table:
    """Return a row for each comparison."""
    return Table(
        title="Real engines compared with their contracts and simulators",
        columns=("engine", "release", "compared with", "runs", "pages", "differences"),
        rows=tuple(
            (
                contract_of(one.kind).title,
                str(release(one.kind)),
                one.subject,
                str(one.runs),
                str(one.pages),
                str(len(one.differences)),
            )
            for one in found
        ),
        notes=("A run is scripted: idle, one long stream, a full queue, a client that disconnects, a drain, ….",),
    )
