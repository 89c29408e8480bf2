"""Kills a `pulumi up` while it creates groups, on the real engine: no duplicate resource remains undetected."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.settings.document import PATH_IN_BUCKET
from scripts.cut_off import begun
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.local_token import BEARER
from tests.fixtures.networks import free_network
from tests.fixtures.stacks.engine import LIMIT_S, ROOT, Engine, embedded_cloud, make_engine

NETWORK = free_network()
STACK = "aws-local"
BUCKET = "gpu-fleet-local-models"
CONTROL = f"http://{NETWORK}.0.2:4566/_localcloud"
UP = ("up", "--yes", "--skip-preview", "--stack", STACK)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with embedded_cloud(tmp_path / "cloud", NETWORK):
        made = make_engine(tmp_path, NETWORK, ("aws",))
        made.client("s3").create_bucket(Bucket=BUCKET)
        made.client("ssm").put_parameter(Name="/gpu-fleet/local/engine-key", Value="e" * 64, Type="SecureString")
        config = made.settings(STACK)
        # a creation that gives up would end the update before it is killed; each retry waits at most 20 s
        config["config"]["aws:maxRetries"] = LIMIT_S
        config["config"]["gpu-fleet:fleet"]["network"]["cidr"] = f"{NETWORK}.0.0/16"
        made.settings(STACK, config)
        made.run("stack", "init", STACK)
        yield made


def groups() -> set[str]:
    return {group["name"] for group in httpx.get(f"{CONTROL}/state", headers=BEARER, timeout=60).json()["groups"]}


def only_groups_are_being_made(engine: Engine) -> bool:
    """Return whether the running update waits only for groups."""
    try:
        known = json.loads(engine.run("stack", "export", "--stack", STACK))["deployment"]
    except AssertionError:
        return False  # the engine is writing the file
    pending = known.get("pending_operations") or ()
    return {one["resource"]["type"] for one in pending} == {"aws:autoscaling/group:Group"}


def kill_in_the_middle(engine: Engine) -> None:
    """Send SIGKILL to the engine and its children while groups exist whose creation has not finished.

    At this point no other resource is being created. Otherwise the cloud would refuse to create that resource twice,
    and the next update would fail.
    """
    slow = {"service": "autoscaling", "operation": "DescribeAutoScalingGroups", "code": "Throttling", "status": 400}
    httpx.post(f"{CONTROL}/api-fault", json=slow | {"times": 10_000}, headers=BEARER, timeout=60).raise_for_status()
    with (engine.folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [str(engine.pulumi), *UP, "--non-interactive"],
            cwd=engine.folder,
            env=engine.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for("the first group", groups, LIMIT_S)
        wait_for("the rest to be made", lambda: only_groups_are_being_made(engine), LIMIT_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        httpx.request("DELETE", f"{CONTROL}/api-fault", json={}, headers=BEARER, timeout=60).raise_for_status()


def cut_off(engine: Engine) -> tuple[int, str]:
    """Run the check that `make up` runs first. Return its exit status and output."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.cut_off", STACK],
        cwd=engine.folder,
        env=engine.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stderr


def asked(engine: Engine, *arguments: str) -> Any:
    """Return the JSON output of a gpufleet command."""
    environment = engine.environment | {"GPUFLEET_FLEET": f"s3://{BUCKET}/{PATH_IN_BUCKET}"}
    command = [sys.executable, "-m", "cli.main", *arguments, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_resources_of_a_killed_update_are_named_terminated_and_recreated_once(engine: Engine) -> None:
    assert cut_off(engine) == (0, ""), "a stack without an update"
    kill_in_the_middle(engine)
    code, output = cut_off(engine)
    # wait first: the cloud may still process a call of the killed engine
    left = groups()
    assert (code, "An update that was killed" in output) == (1, True)
    assert all(name.rpartition("-")[0] in output for name in left), output

    # an operator who continues anyway is notified of every duplicate instance
    engine.run("cancel", "--yes", "--stack", STACK)
    engine.run(*UP)
    assert left < groups()
    [answer] = asked(engine, "watch", "orphans")
    instances = {
        i["id"]
        for i in httpx.get(f"{CONTROL}/state", headers=BEARER, timeout=60).json()["instances"]
        if i["group"] in left
    }
    assert instances
    assert {one["resource"] for one in answer["decisions"]} == instances
    assert all("check whether a `pulumi up` was interrupted" in one["detail"] for one in answer["decisions"])

    # the fix in the runbook
    for name in left:
        engine.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    engine.run("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", STACK)
    assert cut_off(engine) == (0, "")
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    assert not left & groups()


def pending(kind: str, of: str) -> dict[str, Any]:
    return {"type": kind, "resource": {"urn": f"urn:pulumi:s::p::{of}::n", "type": of}}


@pytest.mark.parametrize(
    ("deployment", "count"),
    [
        pytest.param(None, 0, id="a stack without an update"),
        pytest.param({"pending_operations": None}, 0, id="nothing was begun"),
        pytest.param({"pending_operations": [pending("creating", "aws:autoscaling/group:Group")]}, 1, id="a group"),
        pytest.param(
            {"pending_operations": [pending("creating", "gcp:compute/reservation:Reservation")]},
            1,
            id="a reservation",
        ),
        pytest.param({"pending_operations": [pending("creating", "aws:ec2/vpc:Vpc")]}, 0, id="what costs nothing"),
        pytest.param(
            {"pending_operations": [pending("updating", "aws:autoscaling/group:Group")]}, 0, id="one that is known"
        ),
    ],
)
def test_unfinished_creations_are_found(deployment: Any, count: int) -> None:
    assert len(begun(json.dumps({"version": 3, "deployment": deployment}))) == count
