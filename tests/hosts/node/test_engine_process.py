"""Start and CPU time of the engine's main process, as the kernel and docker report them."""

import json
from pathlib import Path

import pytest

from hosts.node import engine_process
from hosts.node.engine_process import EngineProcess
from hosts.node.ports import ProcessTimes, StepError


class Machine:
    """A /proc folder and the answer of `docker inspect`."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.answer: str | None = json.dumps([{"State": {"Pid": 42}}])
        self.asked = 0
        (proc / "stat").write_text("cpu 1 2 3\nbtime 1000\n")

    def inspect(self, command: list[str], limit_s: float) -> str:
        assert command == ["docker", "inspect", "gpufleet-engine"]
        assert limit_s > 0
        self.asked += 1
        if self.answer is None:
            raise StepError("docker inspect: exit code 1")
        return self.answer

    def runs(self, pid: int, *, started: int, user: int, system: int) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        fields = ["S", *["0"] * 10, str(user), str(system), *["0"] * 6, str(started), "0"]
        (self.proc / str(pid) / "stat").write_text(f"{pid} (python3 (main)) {' '.join(fields)}")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(engine_process, "run", made.inspect)
    monkeypatch.setattr(engine_process, "_TICKS_PER_S", 100)
    return made


def test_its_start_and_cpu_time_are_read(machine: Machine) -> None:
    machine.runs(42, started=50_000, user=300, system=100)
    assert EngineProcess(proc=machine.proc).times() == ProcessTimes(started=1500, cpu_s=4)


def test_the_cpu_time_of_children_counts(machine: Machine) -> None:
    """The main process of Dynamo's container starts a frontend and a worker, and waits."""
    machine.runs(42, started=50_000, user=5, system=0)
    machine.runs(43, started=50_010, user=300, system=100)
    for thread, children in ((42, "43 "), (99, "77 ")):
        (machine.proc / "42" / "task" / str(thread)).mkdir(parents=True)
        (machine.proc / "42" / "task" / str(thread) / "children").write_text(children)
    found = EngineProcess(proc=machine.proc)
    assert found.times() == ProcessTimes(started=1500, cpu_s=4.05)
    machine.runs(43, started=50_010, user=400, system=100)
    assert found.times() == ProcessTimes(started=1500, cpu_s=5.05)


def test_docker_is_asked_once_for_a_process(machine: Machine) -> None:
    machine.runs(42, started=50_000, user=300, system=100)
    found = EngineProcess(proc=machine.proc)
    for user in (300, 400, 500):
        machine.runs(42, started=50_000, user=user, system=100)
        times = found.times()
        assert times is not None
        assert times.cpu_s == (user + 100) / 100
    assert machine.asked == 1


def test_its_start_does_not_move_with_the_clock(machine: Machine) -> None:
    machine.runs(42, started=50_000, user=1, system=1)
    found = EngineProcess(proc=machine.proc)
    first = found.times()
    (machine.proc / "stat").write_text("btime 1003\n")
    second = found.times()
    assert first is not None
    assert second is not None
    assert first.started == second.started


@pytest.mark.parametrize("pid", [pytest.param(43, id="another number"), pytest.param(42, id="the same number")])
def test_a_restarted_container_has_a_new_start(machine: Machine, pid: int) -> None:
    machine.runs(42, started=50_000, user=1, system=1)
    found = EngineProcess(proc=machine.proc)
    assert found.times() is not None
    (machine.proc / "42" / "stat").unlink()
    machine.answer = json.dumps([{"State": {"Pid": pid}}])
    machine.runs(pid, started=60_000, user=0, system=0)
    assert found.times() == ProcessTimes(started=1600, cpu_s=0)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="no container"),
        pytest.param("", id="nothing"),
        pytest.param("[]", id="an empty list"),
        pytest.param('[{"State": {"Pid": 0}}]', id="a stopped container"),
        pytest.param('[{"State": {"Pid": "42"}}]', id="a text"),
        pytest.param('{"State": 1}', id="not a list"),
        pytest.param('[{"State": {"Pid": 77}}]', id="a process that has ended"),
    ],
)
def test_times_of_an_engine_that_does_not_run_are_unknown(machine: Machine, answer: str | None) -> None:
    machine.runs(42, started=50_000, user=1, system=1)
    machine.answer = answer
    assert EngineProcess(proc=machine.proc).times() is None


def test_a_kernel_without_a_boot_time_gives_no_times(machine: Machine) -> None:
    machine.runs(42, started=50_000, user=1, system=1)
    (machine.proc / "stat").write_text("cpu 1 2 3\n")
    assert EngineProcess(proc=machine.proc).times() is None
