"""The embedded cloud leaves no process, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.clouds.emulator import (
    REPOSITORY,
    RunningCloud,
    make_group,
    make_network,
    make_template,
    start_cloud,
    stop_cloud,
    wait_for,
)

pytestmark = pytest.mark.slow

_STUBBORN = """#!/bin/sh
trap '' TERM
setsid sleep 1001 &
sleep 1002
"""


def _left(folder: Path) -> list[str]:
    """Command lines of processes that contain the folder."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in environment + command:
            found.append(command.decode(errors="replace").replace("\0", " "))
    return found


def _with_a_stubborn_machine(folder: Path, *flags: str) -> RunningCloud:
    cloud = start_cloud(folder, None, *flags)
    cloud.network = make_network(cloud)
    make_group(cloud, "stubborn", make_template(cloud, "stubborn", _STUBBORN), size=1)
    wait_for("the machine", lambda: cloud.in_service("stubborn"))
    wait_for("its processes", lambda: sum("sleep 100" in line for line in _left(folder)) == 2)
    return cloud


@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["namespaces", "plain folders"])
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="TERM", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGKILL, id="KILL"),
    ],
)
def test_no_process_outlives_the_cloud(tmp_path: Path, number: signal.Signals, flags: tuple[str, ...]) -> None:
    cloud = _with_a_stubborn_machine(tmp_path, *flags)
    cloud.process.send_signal(number)
    cloud.process.wait(timeout=180)
    wait_for("every process to end", lambda: not _left(tmp_path))


def test_machine_with_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    cloud = _with_a_stubborn_machine(tmp_path, "--plain")
    try:
        cloud.client("autoscaling").suspend_processes(AutoScalingGroupName="stubborn", ScalingProcesses=["Launch"])
        root = cloud.machines / cloud.in_service("stubborn")[0]["InstanceId"]
        found = [line for line in _left(root) if "localcloud.machines.supervisor" in line]
        assert len(found) == 1
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and b"machines.supervisor\0--root\0" + str(root).encode() in _command(entry):
                os.kill(int(entry.name), signal.SIGKILL)
        wait_for("its processes to end", lambda: not _left(root))
        wait_for("the group to notice", lambda: not cloud.group("stubborn")["Instances"])
    finally:
        stop_cloud(cloud)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _machines(cloud: RunningCloud) -> set[str]:
    """Names of the machines' folders, without the shared `.image`."""
    return {path.name for path in cloud.machines.iterdir() if not path.name.startswith(".")}


def test_new_cloud_replaces_the_state_of_a_killed_one(tmp_path: Path) -> None:
    first = _with_a_stubborn_machine(tmp_path)
    old = _machines(first)
    first.process.kill()
    first.process.wait(timeout=180)
    second = start_cloud(tmp_path, first.places)
    try:
        assert not old & _machines(second)
        second.network = make_network(second)
        make_group(second, "again", make_template(second, "again"), size=1)
        wait_for("a machine", lambda: second.in_service("again"))
    finally:
        stop_cloud(second)


def test_second_cloud_is_refused_with_the_remedy(tmp_path: Path) -> None:
    first = start_cloud(tmp_path / "first")
    try:
        for state, message in (
            (tmp_path / "first/state", "another embedded cloud uses"),
            (tmp_path / "other", "cannot listen on"),
        ):
            command = [sys.executable, "-m", "localcloud.cloud", "--state", str(state)]
            done = subprocess.run(
                [*command, "--network", first.places.network],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )
            assert done.returncode == 1
            assert message in done.stderr
            assert "gpufleet local down" in done.stderr
            assert "Traceback" not in done.stderr
    finally:
        stop_cloud(first)


def test_network_outside_loopback_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "localcloud.cloud", "--state", str(tmp_path), "--network", "10.0"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert "not on loopback" in done.stderr
