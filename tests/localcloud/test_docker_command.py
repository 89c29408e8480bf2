"""The image's `docker`: image names stand for local programs."""

import sys
from pathlib import Path

import pytest
from localcloud.machines.image.docker import UsageError, command, parse_run, program
from localcloud.machines.image.owners import without_owners

from serving import engine


@pytest.mark.parametrize(
    ("image", "module"),
    [
        pytest.param("gpu-fleet/simulated-engine@sha256:ab12", "localcloud.engine", id="digest"),
        pytest.param("gpu-fleet/simulated-engine:1.0", "localcloud.engine", id="tag"),
        pytest.param(
            "000000000000.dkr.ecr.us-east-1.amazonaws.com/mirror/dcgm-exporter:4.5@sha256:ab",
            "localcloud.dcgm",
            id="registry, tag and digest",
        ),
    ],
)
def test_an_image_stands_for_a_program(image: str, module: str) -> None:
    assert program(image) == module


def test_an_unknown_image_is_refused_with_what_is_known() -> None:
    with pytest.raises(UsageError, match="simulated-engine"):
        program("vllm/vllm-openai:latest")


def test_run_takes_flags_and_leaves_the_images_arguments(tmp_path: Path) -> None:
    words = [
        *("--rm", "--name", "engine", "--gpus=all", "--network", "host", "-e", "A=1", "--env=B=2", "-e", "KEPT"),
        *("-v", "/mnt/nvme:/models:ro", "gpu-fleet/simulated-engine", "serve", "/models/chat", "--x=/models/y", "-e"),
    ]
    run = parse_run(words, {"KEPT": "yes", "OTHER": "no"})
    assert (run.name, run.environment) == ("engine", {"A": "1", "B": "2", "KEPT": "yes"})
    assert command(run, tmp_path) == [
        *(sys.executable, "-P", "-m", "localcloud.engine", "serve"),
        *(f"{tmp_path}/mnt/nvme/chat", f"--x={tmp_path}/mnt/nvme/y", "-e"),
    ]


def test_a_volume_that_lies_in_the_root_already_stays(tmp_path: Path) -> None:
    run = parse_run(["-v", f"{tmp_path}/m:{tmp_path}/m", "simulated-engine", f"{tmp_path}/m/chat"], {})
    assert command(run, tmp_path)[-1] == f"{tmp_path}/m/chat"


@pytest.mark.parametrize("words", [[], ["--rm"], ["--name"]], ids=["nothing", "no image", "no value"])
def test_half_a_command_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_run(words, {})


def test_the_unit_of_the_exporter_is_understood(tmp_path: Path) -> None:
    text = engine.dcgm_unit("gpu-fleet/dcgm-exporter@sha256:ab", host="127.16.1.4")
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    run = parse_run(line.removeprefix("ExecStart=docker run ").split(), {})
    assert run.name == "gpufleet-dcgm"
    assert command(run, tmp_path)[3:6] == ["localcloud.dcgm", "-a", "127.16.1.4:9400"]


def test_the_unit_of_the_node_exporter_is_understood_and_sees_the_machine_s_own_files(tmp_path: Path) -> None:
    text = engine.node_exporter_unit("mirror/node-exporter@sha256:ab", host="127.16.1.4")
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    run = parse_run(line.removeprefix("ExecStart=docker run ").split(), {})
    assert run.name == "gpufleet-node-exporter"
    program, root, address = command(run, tmp_path)[3:6]
    assert (program, address) == ("localcloud.node_exporter", "--web.listen-address=127.16.1.4:9100")
    assert Path(root.removeprefix("--path.rootfs=")) == tmp_path


def test_an_emulated_machine_gives_files_to_nobody_else() -> None:
    """It runs as whoever started it, who is seldom root."""
    words = ["-d", "-o", "2000", "-g", "0", "-m", "0700", "--owner=root", "/mnt/nvme/models/.vllm"]
    assert without_owners(words) == ["-d", "-m", "0700", "/mnt/nvme/models/.vllm"]
