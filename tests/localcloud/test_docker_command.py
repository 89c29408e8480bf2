"""The `docker` command of the machine image: image names map to local programs."""

import shutil
import sys
from pathlib import Path, PurePosixPath

import pytest
from localcloud.machines.image.docker import UsageError, command, parse_run, program
from localcloud.machines.image.owners import without_owners

from serving import engine_container, exporter_units
from serving.accelerators import CONTRACTS


@pytest.mark.parametrize(
    ("image", "module"),
    [
        pytest.param("gpu-fleet/simulated-engine@sha256:ab12", "localcloud.engine", id="digest"),
        pytest.param("gpu-fleet/simulated-engine:1.0", "localcloud.engine", id="tag"),
        pytest.param(
            "000000000000.dkr.ecr.us-east-1.amazonaws.com/mirror/dcgm-exporter:4.5@sha256:ab",
            "localcloud.exporters.nvidia",
            id="registry, tag and digest",
        ),
    ],
)
def test_image_name_maps_to_a_program(image: str, module: str) -> None:
    assert program(image) == [sys.executable, "-P", "-m", module]


@pytest.mark.skipif(
    shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None, reason="haproxy is not installed"
)
def test_gate_unit_runs_the_haproxy_of_this_computer(tmp_path: Path) -> None:
    unit = engine_container.gate_unit(
        "gpu-fleet/haproxy@sha256:ab", config_file=PurePosixPath(f"{tmp_path}/run/gpu-fleet/engine-gate.cfg")
    )
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    run = parse_run(line.split()[2:], {})
    binary, *arguments = command(run, tmp_path)
    assert binary.endswith("/haproxy")
    assert arguments == ["-db", "-f", f"{tmp_path}/run/gpu-fleet/engine-gate.cfg"]
    assert run.environment_files == ["/run/gpu-fleet/engine.env"]


def test_unknown_image_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="simulated-engine"):
        program("vllm/vllm-openai:latest")


def test_run_parses_its_flags_and_passes_the_other_arguments(tmp_path: Path) -> None:
    given = [
        *("--rm", "--name", "engine", "--gpus=all", "--network", "host", "-e", "A=1", "--env=B=2", "-e", "KEPT"),
        *("-v", "/mnt/nvme:/models:ro", "gpu-fleet/simulated-engine", "serve", "/models/chat", "--x=/models/y", "-e"),
    ]
    run = parse_run(given, {"KEPT": "yes", "OTHER": "no"})
    assert (run.name, run.environment) == ("engine", {"A": "1", "B": "2", "KEPT": "yes"})
    assert command(run, tmp_path) == [
        *(sys.executable, "-P", "-m", "localcloud.engine", "serve"),
        *(f"{tmp_path}/mnt/nvme/chat", f"--x={tmp_path}/mnt/nvme/y", "-e"),
    ]


def test_volume_below_the_root_is_unchanged(tmp_path: Path) -> None:
    run = parse_run(["-v", f"{tmp_path}/m:{tmp_path}/m", "simulated-engine", f"{tmp_path}/m/chat"], {})
    assert command(run, tmp_path)[-1] == f"{tmp_path}/m/chat"


@pytest.mark.parametrize("given", [[], ["--rm"], ["--name"]], ids=["nothing", "no image", "no value"])
def test_incomplete_command_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_run(given, {})


def test_exporter_unit_is_parsed(tmp_path: Path) -> None:
    text = exporter_units.exporter_unit(
        CONTRACTS["nvidia"].launch, image="gpu-fleet/dcgm-exporter@sha256:ab", host="127.16.1.4"
    )
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    run = parse_run(line.removeprefix("ExecStart=docker run ").split(), {})
    assert run.name == "gpufleet-exporter"
    assert command(run, tmp_path)[3:6] == ["localcloud.exporters.nvidia", "-a", "127.16.1.4:9400"]


def test_node_exporter_unit_is_parsed_and_reads_the_files_of_the_machine(tmp_path: Path) -> None:
    text = exporter_units.node_exporter_unit("mirror/node-exporter@sha256:ab", host="127.16.1.4")
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    run = parse_run(line.removeprefix("ExecStart=docker run ").split(), {})
    assert run.name == "gpufleet-node-exporter"
    program, root, address = command(run, tmp_path)[3:6]
    assert (program, address) == ("localcloud.node_exporter", "--web.listen-address=127.16.1.4:9100")
    assert Path(root.removeprefix("--path.rootfs=")) == tmp_path


def test_owner_options_of_install_are_dropped() -> None:
    """The machine runs as the user who started it, and only root can change owners."""
    given = ["-d", "-o", "2000", "-g", "0", "-m", "0700", "--owner=root", "/mnt/nvme/models/.vllm"]
    assert without_owners(given) == ["-d", "-m", "0700", "/mnt/nvme/models/.vllm"]
