"""The engine's API key: a separate secret, in one file that only root can read, written before the engine starts."""

import json
from pathlib import Path

import pytest

from gpufleet.domain.model import Phase
from hosts.node import engine_key
from hosts.node.ports import StepError, UnitState
from serving import engine_container
from tests.fixtures.node.fake_node import Machine
from tests.fixtures.signing import ENGINE_KEY as KEY


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Machine:
    return Machine(root=tmp_path / "root", bucket=bucket)


def laid(machine: Machine) -> Path:
    return machine.root / "run/gpu-fleet/engine.env"


def test_the_key_is_in_its_file_before_the_engine_starts_and_nowhere_else(machine: Machine) -> None:
    found: list[str] = []
    start = machine.units.on_start

    def look(name: str) -> UnitState:
        if name == engine_container.UNIT:
            found.append(laid(machine).read_text())
        return start(name)

    machine.units.on_start = look
    assert machine.boot.run()
    assert found == [f"VLLM_API_KEY={KEY}\n"]
    assert laid(machine).stat().st_mode & 0o777 == 0o600
    assert laid(machine).parent.stat().st_mode & 0o777 == 0o700
    assert f"--env-file={laid(machine)}" in machine.units.texts[engine_container.UNIT]
    assert machine.engine.keys == [KEY]
    assert KEY not in json.dumps(machine.state.status())
    written = [path for path in machine.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert written == [laid(machine)]
    assert KEY not in "".join(machine.units.texts.values())


def test_an_engine_without_authentication_is_not_started(machine: Machine) -> None:
    machine.cloud.refuses = True
    assert not machine.boot.run()
    assert machine.state.phase is Phase.FAILED
    assert "the engine's key cannot be read" in machine.state.status()["error"]
    assert ("start", engine_container.UNIT) not in machine.units.calls
    assert not laid(machine).exists()


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("", id="empty"),
        pytest.param("hunter2", id="a password"),
        pytest.param("e" * 63, id="cut"),
        pytest.param("E" * 64, id="capitals"),
        pytest.param("e" * 64 + "\nVLLM_SERVER_DEV_MODE=1", id="a second line"),
    ],
)
def test_an_invalid_engine_key_starts_no_engine_and_is_not_shown(machine: Machine, secret: str) -> None:
    machine.cloud.engine_key = secret
    assert not machine.boot.run()
    assert "ssm:/engine-key: is not an engine key (64 hexadecimal digits" in machine.state.status()["error"]
    assert ("start", engine_container.UNIT) not in machine.units.calls
    assert not secret or secret not in json.dumps(machine.state.status()) + "".join(machine.lines)


def test_an_engine_with_another_key_is_restarted_and_one_with_this_key_is_not(machine: Machine) -> None:
    machine.boot.run()
    served = machine.units.calls.count(("start", engine_container.UNIT))
    for text, restarts in ((laid(machine).read_text(), 0), ("VLLM_API_KEY=old\n", 1)):
        laid(machine).write_text(text)
        machine.engine.silent = True
        machine.restart_agent()
        machine.boot.services.sleep = lambda _s: setattr(machine.engine, "silent", False)
        assert machine.boot.run()
        assert machine.units.calls.count(("start", engine_container.UNIT)) == served + restarts
        assert laid(machine).read_text() == f"VLLM_API_KEY={KEY}\n"


def test_an_error_names_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(StepError, match="engine's key cannot be written to .*/run/gpu-fleet/engine.env"):
        engine_key.write_key(tmp_path, "vllm", KEY)


def test_a_partially_written_file_is_ignored(tmp_path: Path) -> None:
    place = engine_key.key_path(tmp_path)
    place.parent.mkdir(parents=True)
    half_done = place.with_name(f".{place.name}.part")
    half_done.write_text("VLLM_API")
    half_done.chmod(0o644)
    assert engine_key.write_key(tmp_path, "vllm", KEY)
    assert not engine_key.write_key(tmp_path, "vllm", KEY)
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert place.stat().st_mode & 0o777 == 0o600
