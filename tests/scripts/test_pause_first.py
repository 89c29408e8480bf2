"""Tests that `make destroy` pauses the fleet's watchdogs first, and stops if that fails."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.ledgers import ledger_name
from gpufleet.ledger import operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import render
from gpufleet.toolchain.folders import ROOT
from scripts.big_update import PlanError, ended
from tests.fixtures.watchdogs.plain import START, document


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    code: int
    output: str


def paused(folder: Path, stack_output: str, stack: str = "aws-dev", *more: str) -> Answer:
    return run("pause_first", folder, stack_output, stack, "--reason", "pulumi destroy of aws-dev", *more)


def run(script: str, folder: Path, stack_output: str, *arguments: str) -> Answer:
    """Run a script with a fake `pulumi` that returns only this output."""
    fake_pulumi = folder / "bin" / "pulumi"
    fake_pulumi.parent.mkdir()
    fake_pulumi.write_text(f"#!/bin/sh\n{stack_output}\n")
    fake_pulumi.chmod(0o755)
    environment = {**os.environ, "PATH": f"{fake_pulumi.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", f"scripts.{script}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    return Answer(code=done.returncode, output=done.stdout + done.stderr)


def written(folder: Path, ledger: str) -> Path:
    path = folder / "fleet.json"
    path.write_text(render(document().model_copy(update={"ledger_url": ledger})))
    return path


def test_all_watchdogs_are_paused_with_a_reason_and_an_expiry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    open_ledger(url).dispose()
    done = paused(tmp_path, f"echo {written(tmp_path, url)}")
    assert done.code == 0, done.output
    (brake,) = operations.brakes(open_ledger(url), ledger_name(document()), START)
    assert (brake.kind, brake.scope, brake.reason) == ("pause", "all", "pulumi destroy of aws-dev")
    assert brake.until is not None


def test_an_unreachable_ledger_stops_the_command(tmp_path: Path) -> None:
    done = paused(tmp_path, f"echo {written(tmp_path, f'sqlite:///{tmp_path}/control/ledger.db')}")
    assert done.code == 1
    assert "PAUSED=yes" in done.output and "is not on this machine" in done.output
    assert not (tmp_path / "control").exists(), "it creates no ledger, because no watchdog would read it"


def test_a_local_fleet_without_watchdog_runs_needs_no_pause(tmp_path: Path) -> None:
    fleet = written(tmp_path, f"sqlite:///{tmp_path}/ledger.db")
    done = paused(tmp_path, f"echo {fleet}", "aws-local")
    assert (done.code, "ever run" in done.output) == (0, True)


NO_OUTPUT = "echo \"error: current stack does not have output property 'fleet_url'\" >&2; exit 1"
NO_STACK = "echo \"error: no stack named 'aws-dev' found\" >&2; exit 6"


@pytest.mark.parametrize("output", [NO_OUTPUT, NO_STACK, "true"], ids=["no such output", "no such stack", "empty"])
def test_a_stack_without_a_fleet_needs_no_pause(tmp_path: Path, output: str) -> None:
    done = paused(tmp_path, output)
    assert (done.code, "no fleet yet" in done.output) == (0, True)


@pytest.mark.parametrize("script", ["pause_first", "cut_off"])
def test_a_stack_that_cannot_be_read_is_not_treated_as_new(tmp_path: Path, script: str) -> None:
    failed = "echo 'error: incorrect passphrase' >&2; exit 255"
    done = run(script, tmp_path, failed, "aws-dev", *(["--reason", "test"] if script == "pause_first" else []))
    assert done.code == 1
    assert "stack aws-dev cannot be read, so nothing was changed: error: incorrect passphrase" in done.output


URN = "urn:pulumi:aws-dev::gpu-fleet::gpu-fleet:aws:GpuPool$"


@pytest.mark.parametrize(
    ("kind", "op", "big"),
    [
        ("aws:autoscaling/group:Group", "delete", True),
        ("aws:autoscaling/group:Group", "replace", True),
        ("aws:autoscaling/group:Group", "update", False),
        ("aws:autoscaling/group:Group", "create", False),
        ("aws:ec2/launchTemplate:LaunchTemplate", "update", False),
        ("aws:ec2/launchTemplate:LaunchTemplate", "create-replacement", True),
        ("aws:ec2/capacityReservation:CapacityReservation", "delete", True),
        ("aws:ec2/instance:Instance", "replace", True),
        ("gcp:compute/instanceGroupManager:InstanceGroupManager", "delete-replaced", True),
        ("gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager", "delete", True),
        ("gcp:compute/instance:Instance", "replace", True),
        ("gcp:compute/instanceTemplate:InstanceTemplate", "replace", False),
        ("aws:s3/bucketObjectv2:BucketObjectv2", "delete", False),
    ],
)
def test_an_update_is_large_when_it_deletes_groups_or_machines(kind: str, op: str, big: bool) -> None:
    plan = json.dumps({"steps": [{"op": op, "urn": f"{URN}{kind}::chat-spot"}]})
    assert [line.split()[-3] for line in ended(plan)] == (["chat-spot"] if big else [])


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}"])
def test_an_unreadable_plan_is_not_treated_as_small(text: str) -> None:
    with pytest.raises(PlanError):
        ended(text)


@pytest.mark.parametrize(("op", "brakes"), [("delete", 1), ("update", 0)], ids=["big", "small"])
def test_an_up_pauses_only_for_a_big_update(tmp_path: Path, op: str, brakes: int) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    open_ledger(url).dispose()
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"steps": [{"op": op, "urn": f"{URN}aws:autoscaling/group:Group::chat-spot"}]}))
    answers = f'case "$1" in preview) cat {plan} ;; *) echo {written(tmp_path, url)} ;; esac'
    done = paused(tmp_path, answers, "aws-dev", "--if-big")
    assert done.code == 0, done.output
    assert ("group chat-spot is deleted" in done.output) is bool(brakes)
    assert len(operations.brakes(open_ledger(url), ledger_name(document()), START)) == brakes


def test_an_up_with_a_failed_plan_stops(tmp_path: Path) -> None:
    fleet = written(tmp_path, f"sqlite:///{tmp_path}/ledger.db")
    answers = f'case "$1" in preview) echo settings are wrong >&2; exit 255 ;; *) echo {fleet} ;; esac'
    done = paused(tmp_path, answers, "aws-dev", "--if-big")
    assert (done.code, "settings are wrong" in done.output) == (1, True)


@pytest.mark.parametrize("target", ["destroy", "up"])
def test_make_continues_only_after_it(target: str) -> None:
    output = subprocess.run(
        ["make", "--dry-run", target, "STACK=aws-dev"],
        cwd=ROOT,
        env=os.environ | {"MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    ).stdout
    assert output.index("scripts.cut_off") < output.index("scripts.pause_first") < output.index(f"&& pulumi {target}")
