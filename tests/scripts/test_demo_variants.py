"""Tests of the demo's components, and of the settings that use real vLLM in one of its pools."""

from datetime import date, timedelta
from pathlib import Path

import pytest
import yaml
from localcloud.lifecycle.environment import MARK
from localcloud.lifecycle.selected_cloud import stack_of
from localcloud.machines.image.docker import program

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import ROOT, Folders
from scripts.demo import control_host, variants
from scripts.demo.__main__ import main
from scripts.demo.session import Session
from serving.engines import CONTRACTS
from stacks.reading import parse


@pytest.mark.parametrize("engine", [*variants.Engine])
def test_every_engine_has_a_variant_that_states_what_is_real(engine: variants.Engine) -> None:
    found = variants.choose(engine.value)
    assert found.engine is engine
    assert "simulated" in found.closing


def test_an_unknown_engine_is_refused_with_the_available_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engine", "tensorrt"]) == 2
    expected = "ENGINE: expected one of simulated, vllm, sglang, trtllm, triton, lmdeploy, dynamo, got 'tensorrt'"
    assert expected in capsys.readouterr().err


def test_the_demo_has_every_engine_that_the_fleet_starts() -> None:
    started = {kind for kind, contract in CONTRACTS.items() if contract.launch is not None}
    assert set(map(str, variants.VARIANTS)) == started | {"simulated"}


CHANGED = {
    variants.Engine.VLLM: ("vllm", "localcloud.vllm", timedelta(seconds=30)),
    variants.Engine.SGLANG: ("sglang", "localcloud.engine", timedelta(seconds=60)),
    variants.Engine.TRTLLM: ("trtllm", "localcloud.engine", timedelta(seconds=30)),
    variants.Engine.TRITON: ("triton", "localcloud.engine", timedelta(seconds=30)),
    variants.Engine.LMDEPLOY: ("lmdeploy", "localcloud.engine", timedelta(seconds=30)),
    variants.Engine.DYNAMO: ("dynamo", "localcloud.engine", timedelta(seconds=30)),
}
"""Engines that differ from the stack's settings: kind, program and idle window of the pool `chat`."""


@pytest.mark.parametrize("cloud", [*Cloud])
@pytest.mark.parametrize("engine", CHANGED)
def test_only_chat_runs_another_engine_and_the_settings_hold(
    cloud: Cloud, engine: variants.Engine, tmp_path: Path
) -> None:
    kind, module, window = CHANGED[engine]
    stack = stack_of(cloud)
    shipped = ROOT / "stacks" / "config" / f"Pulumi.{stack}.yaml"
    config = tmp_path / "stacks" / "config"
    config.mkdir(parents=True)
    (config / shipped.name).write_bytes(shipped.read_bytes())
    option, file = variants.write_settings(Folders(root=tmp_path, cache=tmp_path), stack, variants.choose(engine))
    assert option == "--config-file"
    changed = yaml.safe_load((tmp_path / file).read_text("utf-8"))
    before = yaml.safe_load(shipped.read_text("utf-8"))
    found = parse(changed["config"], shipped.name, date(2026, 11, 21), stack).pools[0]
    assert (found.name, found.engine.kind, found.target) == ("chat", kind, variants.VARIANTS[engine].served["chat"])
    assert found.watchdogs.idle is not None
    assert found.watchdogs.idle.window == window
    pools = {pool["name"]: pool for pool in changed["config"]["gpu-fleet:fleet"]["pools"]}
    assert program(pools["chat"]["engine"]["image"])[-1] == module
    assert CONTRACTS[kind].probes.version or CONTRACTS[kind].covers(found.engine.version)
    shipped_pools = {pool["name"]: pool for pool in before["config"]["gpu-fleet:fleet"]["pools"]}
    assert pools["batch"] == shipped_pools["batch"]
    assert {name: pool["target"] for name, pool in shipped_pools.items()} == variants.SIMULATED.served


def test_the_default_demo_runs_the_settings_of_the_stack(tmp_path: Path) -> None:
    assert variants.write_settings(Folders(root=tmp_path, cache=tmp_path), "aws-local", variants.SIMULATED) == ()


@pytest.mark.parametrize("cloud", [*Cloud])
@pytest.mark.parametrize("engine", [*variants.Engine])
def test_a_control_host_is_added_to_the_stack(cloud: Cloud, engine: variants.Engine, tmp_path: Path) -> None:
    stack = stack_of(cloud)
    shipped = ROOT / "stacks" / "config" / f"Pulumi.{stack}.yaml"
    config = tmp_path / "stacks" / "config"
    config.mkdir(parents=True)
    (config / shipped.name).write_bytes(shipped.read_bytes())
    session = Session(root=tmp_path, environment={}, cloud=cloud)
    session.settings = variants.write_settings(Folders(root=tmp_path, cache=tmp_path), stack, variants.choose(engine))
    now = tmp_path / session.settings[-1] if session.settings else shipped
    before = yaml.safe_load(now.read_text("utf-8"))["config"]["gpu-fleet:fleet"]
    option, file = control_host.write_settings(session, "ab" * 32)
    assert option == "--config-file"
    changed = yaml.safe_load((tmp_path / file).read_text("utf-8"))
    found = parse(changed["config"], shipped.name, date(2026, 11, 21), stack)
    assert found.control is not None
    assert found.control.bundle == "ab" * 32
    fleet = changed["config"]["gpu-fleet:fleet"]
    assert fleet.pop("control")
    assert fleet == before


def test_too_little_memory_is_reported_before_any_start(tmp_path: Path) -> None:
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 8000000 kB\nMemAvailable: 3145728 kB\n", "utf-8")
    with pytest.raises(
        variants.VariantError, match=r"3\.0 GiB of memory are free and real vLLM needs 6.*ENGINE=simulated"
    ):
        variants.prepare(print, memory)


def test_the_stop_process_of_a_cloud_is_not_stopped_by_itself(tmp_path: Path) -> None:
    """If the demo is killed, this process continues to run, and the next demo terminates all marked processes."""
    command = tmp_path / "gpufleet"
    command.write_text(f'#!/bin/sh\necho "$@" "${{{MARK}-no mark}}"\n')
    command.chmod(0o755)
    session = Session(root=tmp_path, environment={"PATH": f"{tmp_path}:/usr/bin:/bin", MARK: "ours"})
    assert session.ask("gpufleet", "status").stdout == "status ours\n"
    assert session.end_cloud("--json").stdout == "local down --json no mark\n"
    assert session.ask("gpufleet", "status").stdout == "status ours\n"
