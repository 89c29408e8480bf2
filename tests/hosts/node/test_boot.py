import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from hosts.node.ports import StepError, UnitState
from serving import engine_container, engine_gate, exporter_units
from serving.instance_settings import EngineSettings
from tests.fixtures.node.fake_node import Machine, settings


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Machine:
    return Machine(root=tmp_path, bucket=bucket)


def test_a_boot_runs_its_steps_in_order_and_reports_them(machine: Machine) -> None:
    assert machine.state.agent_check() == "down"
    assert machine.boot.run()
    assert machine.state.ready
    assert machine.state.agent_check() == "up ready"
    status = machine.state.status()
    assert [step["step"] for step in status["boot"]] == ["disks", "cache", "engine", "warm-up"]
    assert all(step["error"] is None and step["attempts"] == 1 for step in status["boot"])
    assert machine.disks.prepared == ["/mnt/nvme"]
    assert machine.engine.warm_ups == 1
    served = machine.root / "mnt/nvme/models" / f"chat@{status['model_digest']}"
    assert (served / "config.json").is_file()
    assert f" serve {served} " in machine.units.texts[engine_container.UNIT]


def test_a_restarted_agent_leaves_a_healthy_engine_alone(machine: Machine) -> None:
    machine.boot.run()
    machine.restart_agent()
    assert machine.boot.run()
    assert machine.state.agent_check() == "up ready"
    assert machine.units.calls.count(("start", engine_container.UNIT)) == 1
    assert machine.disks.prepared == ["/mnt/nvme"]


def test_a_rebooted_machine_boots_again(machine: Machine) -> None:
    machine.boot.run()
    machine.units.states.clear()
    machine.restart_agent()
    assert machine.state.phase is Phase.BOOTING
    assert machine.boot.run()
    assert machine.units.calls.count(("start", engine_container.UNIT)) == 2
    assert machine.disks.prepared == ["/mnt/nvme"] * 2


def test_a_failed_step_is_retried(machine: Machine) -> None:
    machine.disks.failures = 2
    assert machine.boot.run()
    (step,) = [step for step in machine.state.steps() if step.phase is Phase.DISKS]
    assert (step.attempts, step.error) == (3, None)


def test_a_step_that_keeps_failing_ends_the_boot_and_later_the_instance(machine: Machine) -> None:
    machine.disks.failures = 1000
    assert not machine.boot.run()
    assert machine.state.phase is Phase.FAILED
    assert "no such device" in machine.state.status()["error"]
    assert machine.state.agent_check() == "down"
    machine.pass_time(timedelta(minutes=14))
    assert machine.powered_off == 0
    machine.restart_agent()
    assert machine.state.phase is Phase.FAILED
    machine.pass_time(timedelta(minutes=2))
    assert machine.powered_off == 1
    assert machine.state.status()["phase"] == "failed"


def test_an_engine_that_ends_while_it_loads_is_restarted_within_its_limit(machine: Machine) -> None:
    machine.units.on_start = lambda name: UnitState.FAILED if name == engine_container.UNIT else UnitState.ACTIVE
    assert not machine.boot.run()
    assert "stopped during its start" in machine.state.status()["error"]
    assert machine.units.calls.count(("start", engine_container.UNIT)) == 6


def test_an_engine_that_never_becomes_healthy_fails_at_its_limit(machine: Machine) -> None:
    machine.engine.silent = True
    assert not machine.boot.run()
    assert machine.state.phase is Phase.FAILED
    assert machine.since_start() == pytest.approx(900, abs=10)


def test_a_model_that_is_not_served_fails_with_its_name_after_retries(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket, settings=settings(model="models/other"))
    assert not machine.boot.run()
    assert "models/other" in machine.state.status()["error"]


def test_invalid_engine_arguments_fail_without_a_retry(bucket: Path, tmp_path: Path) -> None:
    base = settings()
    bad = replace(base, engine=replace(base.engine, args=("--host", "0.0.0.0")))
    machine = Machine(root=tmp_path, bucket=bucket, settings=bad)
    assert not machine.boot.run()
    assert "--host" in machine.state.status()["error"]
    assert machine.since_start() < 1


def test_without_its_exporter_an_instance_serves_and_shows_a_warning(machine: Machine) -> None:
    def refuse(name: str) -> UnitState:
        if name == exporter_units.EXPORTER_UNIT:
            raise StepError("docker: no such image")
        return UnitState.ACTIVE

    machine.units.on_start = refuse
    assert machine.boot.run()
    assert "no such image" in machine.state.status()["warnings"]["exporter"]


def test_a_node_exporter_runs_only_if_the_settings_enable_it(machine: Machine) -> None:
    assert machine.boot.run()
    assert exporter_units.NODE_EXPORTER_UNIT not in machine.units.texts


@pytest.mark.parametrize("refused", [False, True], ids=["it starts", "it does not"])
def test_a_node_exporter_is_optional(bucket: Path, tmp_path: Path, refused: bool) -> None:
    wants = settings(node_exporter_image="node-exporter@sha256:2")
    machine = Machine(root=tmp_path, bucket=bucket, settings=wants)

    def refuse(name: str) -> UnitState:
        if refused and name == exporter_units.NODE_EXPORTER_UNIT:
            raise StepError("docker: no such image")
        return UnitState.ACTIVE

    machine.units.on_start = refuse
    assert machine.boot.run()
    assert machine.state.agent_check() == "up ready"
    assert f"{machine.cloud.address}:9100" in machine.units.texts[exporter_units.NODE_EXPORTER_UNIT]
    started = [name for _, name in machine.units.calls]
    assert started.index(engine_container.UNIT) < started.index(exporter_units.NODE_EXPORTER_UNIT), (
        "the engine waits for nothing"
    )
    warning = machine.state.status()["warnings"].get("node exporter", "")
    assert ("no such image" in warning) == refused


def test_another_revision_restarts_the_engine(machine: Machine) -> None:
    machine.boot.run()
    machine.units.texts[engine_container.UNIT] = "another text"
    machine.engine.silent = True
    machine.restart_agent()
    machine.boot.services.sleep = lambda _s: setattr(machine.engine, "silent", False)
    assert machine.boot.run()
    calls = [call for call in machine.units.calls if call[1] == engine_container.UNIT]
    assert calls == [
        ("start", engine_container.UNIT),
        ("stop", engine_container.UNIT),
        ("start", engine_container.UNIT),
    ]


def test_the_agent_restarts_a_failed_engine_and_finally_fails_the_instance(machine: Machine) -> None:
    machine.boot.run()
    machine.units.states[engine_container.UNIT] = UnitState.FAILED
    machine.pass_time(timedelta(seconds=5))
    assert machine.state.ready
    assert machine.units.calls.count(("start", engine_container.UNIT)) == 2
    machine.units.on_start = lambda _name: UnitState.FAILED
    machine.units.states[engine_container.UNIT] = UnitState.FAILED
    machine.pass_time(timedelta(seconds=20))
    assert machine.state.phase is Phase.FAILED


def test_an_engine_without_an_answer_is_taken_out_and_back(machine: Machine) -> None:
    machine.boot.run()
    machine.engine.silent = True
    machine.pass_time(timedelta(seconds=5))
    assert machine.state.agent_check() == "down"
    assert machine.state.status()["requests_running"] is None
    machine.engine.silent = False
    machine.pass_time(timedelta(seconds=5))
    assert machine.state.agent_check() == "up ready"


def test_a_cloud_that_is_silent_is_a_warning_until_it_answers(machine: Machine) -> None:
    machine.boot.run()
    machine.cloud.refuses = True
    machine.pass_time(timedelta(seconds=10))
    assert "metadata" in machine.state.status()["warnings"]
    machine.cloud.refuses = False
    machine.pass_time(timedelta(seconds=20))
    assert machine.state.status()["warnings"].keys() <= {"gpu"}


def test_a_clock_that_is_set_back_delays_no_boot(machine: Machine) -> None:
    machine.disks.failures = 1
    slept = machine.boot.services.sleep
    steps = iter([timedelta(hours=1)])

    def sleep(seconds: float) -> None:
        slept(seconds)
        machine.clock.now -= next(steps, timedelta(0))

    machine.boot.services.sleep = sleep
    began = machine.clock.now
    assert machine.boot.run()
    assert machine.clock.now - began < timedelta(0)


def test_a_full_disk_prevents_no_drain(machine: Machine) -> None:
    machine.boot.run()
    folder = machine.root / "var/lib/gpu-fleet"
    shutil.rmtree(folder)
    folder.write_text("no folder any more")
    machine.agent.ask_to_drain(DrainOwner.IDLE, "idle", timedelta(seconds=60))
    machine.pass_time(timedelta(seconds=20))
    assert machine.state.phase is Phase.DRAINED
    assert "cannot restore this phase after a restart" in machine.state.status()["warnings"]["state"]


def test_a_truncated_state_file_is_ignored(machine: Machine) -> None:
    machine.boot.run()
    file = machine.root / "var/lib/gpu-fleet/agent.json"
    file.write_text(json.dumps({"phase": "drained"})[:-3])
    machine.restart_agent()
    assert machine.state.phase is Phase.BOOTING


TRTLLM = settings(
    engine=EngineSettings(kind="trtllm", image="engine@sha256:0"), gate_image="gpu-fleet/haproxy@sha256:2"
)


@pytest.fixture
def gated(bucket: Path, tmp_path: Path) -> Machine:
    """A machine whose engine needs a gate."""
    return Machine(root=tmp_path, bucket=bucket, settings=TRTLLM)


def test_a_gate_starts_before_an_engine_that_has_no_key(gated: Machine) -> None:
    assert gated.boot.run()
    starts = [unit for call, unit in gated.units.calls if call == "start"]
    assert starts.index(engine_gate.UNIT) < starts.index(engine_container.UNIT)
    engine, gate = gated.units.texts[engine_container.UNIT], gated.units.texts[engine_gate.UNIT]
    assert "--env-file" not in engine
    assert f"--env-file={gated.root}/run/gpu-fleet/engine.env" in gate
    assert f"After=network-online.target docker.service {engine_gate.UNIT}" in engine.splitlines()
    config = gated.root / "run/gpu-fleet/engine-gate.cfg"
    assert gated.cloud.engine_key not in config.read_text("utf-8") + gate
    assert f"--volume={config}:" in gate


def test_an_engine_that_needs_a_gate_does_not_start_without_its_image(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket, settings=replace(TRTLLM, gate_image=None))
    assert not machine.boot.run()
    error = machine.state.status()["error"]
    assert "gate_image: is missing; trtllm cannot protect itself: set machines.gate_image" in error
    assert ("start", engine_container.UNIT) not in machine.units.calls


def test_another_key_restarts_the_gate_and_leaves_the_engine_alone(gated: Machine) -> None:
    gated.boot.run()
    gated.cloud.engine_key = "f" * 64
    # the agent boots again, because the gate is not yet active
    gated.units.states[engine_gate.UNIT] = UnitState.ACTIVATING
    gated.restart_agent()
    gated.units.calls.clear()
    assert gated.boot.run()
    assert [call for call in gated.units.calls if call[1] == engine_gate.UNIT] == [
        ("stop", engine_gate.UNIT),
        ("start", engine_gate.UNIT),
    ]
    assert ("stop", engine_container.UNIT) not in gated.units.calls
    assert ("start", engine_container.UNIT) not in gated.units.calls


def test_a_restarted_agent_starts_a_gate_that_does_not_run(gated: Machine) -> None:
    gated.boot.run()
    gated.units.states[engine_gate.UNIT] = UnitState.INACTIVE
    gated.restart_agent()
    gated.units.calls.clear()
    assert gated.boot.run()
    assert ("start", engine_gate.UNIT) in gated.units.calls
    assert ("start", engine_container.UNIT) not in gated.units.calls


def test_the_agent_starts_a_gate_that_systemd_gave_up(gated: Machine) -> None:
    gated.boot.run()
    gated.units.states[engine_gate.UNIT] = UnitState.FAILED
    gated.units.calls.clear()
    gated.engine.silent = True
    gated.pass_time(timedelta(seconds=3))
    assert gated.units.calls[0] == ("start", engine_gate.UNIT)
    assert ("start", engine_container.UNIT) not in gated.units.calls


def test_a_gate_that_fails_at_its_start_fails_the_boot_with_its_name(gated: Machine) -> None:
    gated.units.on_start = lambda name: UnitState.FAILED if name == engine_gate.UNIT else UnitState.ACTIVE
    assert not gated.boot.run()
    assert f"the journal of {engine_gate.UNIT} has its log" in gated.state.status()["error"]
