"""`deploy/Containerfile`, as far as it can be checked without a container engine."""

import ast
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from app import bundles
from cli.commands import build
from gpufleet.toolchain.folders import ROOT

WHEEL = re.compile(r"dist/gpu_fleet-\*\.whl")
"""What `make dist` creates."""


class Instruction(NamedTuple):
    """An instruction, and the stage that it belongs to."""

    stage: str
    name: str
    value: str


def instructions() -> list[Instruction]:
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    found: list[Instruction] = []
    stage = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, value = line.partition(" ")
        if name == "FROM":
            stage = value.split(" AS ")[1]
        found.append(Instruction(stage, name, value.strip()))
    return found


ALL = instructions()
PARENTS = {one.stage: one.value.split(" AS ")[0] for one in ALL if one.name == "FROM"}
RUN_STAGES = [stage for stage in PARENTS if stage != "build"]


def inherited(stage: str, name: str) -> str:
    """The value in the stage, or in the stage that it is based on."""
    own = [one.value for one in ALL if (one.stage, one.name) == (stage, name)]
    return own[-1] if own else inherited(PARENTS[stage], name)


def test_watchdogs_are_the_default_and_every_stage_is_based_on_the_named_image_or_a_stage() -> None:
    assert list(PARENTS) == ["build", "report", "console", "watch"]
    assert set(PARENTS.values()) <= {"${PYTHON}", *PARENTS}
    (image,) = [one.value.removeprefix("PYTHON=") for one in ALL if one.name == "ARG"]
    tag = image.rpartition("/")[2]
    assert "@sha256:" in tag or (":" in tag and not tag.endswith(":latest")), f"{image} is any version"


@pytest.mark.parametrize("copied", [one.value for one in ALL if one.name == "COPY"])
def test_everything_that_is_copied_exists_or_is_made_before(copied: str) -> None:
    *sources, target = copied.split()
    if sources[0].startswith("--from="):
        assert sources.pop(0).removeprefix("--from=") in PARENTS
        assert target.startswith("/opt/gpu-fleet")
        return
    for source in sources:
        assert WHEEL.fullmatch(source) or (ROOT / source).is_file(), f"{source} does not exist"


@pytest.mark.parametrize(
    "value", [one.value for one in ALL if one.name in {"RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK", "VOLUME"}]
)
def test_no_shell_runs(value: str) -> None:
    arguments = json.loads(value[value.index("[") :])
    assert all(isinstance(word, str) for word in arguments)
    assert not {"sh", "bash"} & set(arguments)


def extras(arguments: Sequence[str]) -> set[str]:
    return {extra for option, extra in pairwise(arguments) if option == "--extra"}


def test_the_image_has_the_packages_of_a_control_host() -> None:
    (sync,) = [json.loads(one.value) for one in ALL if one.name == "RUN" and '"sync"' in one.value]
    assert extras(sync) == extras(bundles.EXPORT)
    assert "--no-dev" in sync


@pytest.mark.parametrize("stage", RUN_STAGES)
def test_a_stage_runs_as_a_user_and_starts_a_command_that_exists(stage: str) -> None:
    user, _, group = inherited(stage, "USER").partition(":")
    assert int(user) > 0 and int(group) > 0
    assert json.loads(inherited(stage, "ENTRYPOINT")) == ["/opt/gpu-fleet/bin/gpufleet"]
    arguments = json.loads(inherited(stage, "CMD"))
    command: Any = get_command(build())
    while arguments and hasattr(command, "commands") and not arguments[0].startswith("-"):
        command = command.commands[arguments.pop(0)]
    if arguments == ["--help"]:
        return
    _, left, _ = command.make_parser(command.context_class(command)).parse_args(arguments)
    assert left == []


@pytest.mark.parametrize("stage", ["console", "watch"])
def test_the_health_check_asks_the_port_that_the_command_serves(stage: str) -> None:
    check = json.loads(inherited(stage, "HEALTHCHECK").partition("CMD ")[2])
    ast.parse(check[-1])
    port = inherited(stage, "EXPOSE")
    assert f"http://127.0.0.1:{port}/healthz" in check[-1]
    assert f"0.0.0.0:{port}" in json.loads(inherited(stage, "CMD"))


def test_settings_and_secrets_are_read_from_the_mounted_folder() -> None:
    places = [Path(one) for one in re.findall(r"/etc/[\w./-]+", "\n".join(one.value for one in ALL))]
    assert {place.parent for place in places} == {Path("/etc/gpu-fleet")}
    assert not [one for one in ALL if one.name in {"ENV", "ARG"} and re.search("TOKEN|SECRET|KEY", one.value)]
