"""An instance of the embedded cloud from user data to its end: real agent, real sockets, simulated engine."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.clouds.aws import signed
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from tests.fixtures.e2e.embedded_cloud import (
    WITH_KEY,
    EmbeddedCloud,
    started,
    status,
    wait_for,
    wait_until,
)
from tests.fixtures.e2e.slow_engine import SETTINGS
from tests.fixtures.networks import free_network

pytestmark = pytest.mark.slow
NETWORK = free_network()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    with started(tmp_path_factory.mktemp("cloud"), NETWORK) as up:
        up.make_group("chat-spot", up.user_data(SETTINGS))
        yield up


@pytest.fixture
def instance(cloud: EmbeddedCloud) -> dict[str, Any]:
    """A ready instance of the group, which replaces one that an earlier test terminated."""

    def look() -> dict[str, Any] | None:
        for member in cloud.members("chat-spot"):
            if status(member["PrivateIpAddress"])["ready"]:
                return member
        return None

    return wait_for("a ready instance", look, 180)


class Streams:
    """Long requests, each from its own client."""

    def __init__(self, address: str, count: int, tokens: int) -> None:
        self.answers: dict[int, list[dict[str, Any]]] = {}
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._one, args=(address, number, tokens), daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        wait_for("requests in flight", lambda: len(self.answers) == count)

    def _one(self, address: str, number: int, tokens: int) -> None:
        request = {
            "model": "chat",
            "messages": [{"role": "user", "content": f"question {number}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"http://{address}:8000/v1/chat/completions"
        try:
            with httpx.stream("POST", url, json=request, headers=WITH_KEY, timeout=60) as answer:
                for line in answer.iter_lines():
                    self.answers.setdefault(number, [])
                    if line.startswith("data: {"):
                        self.answers[number].append(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            self.errors.append(error)

    def all_whole(self, tokens: int) -> bool:
        for thread in self._threads:
            thread.join(60)
        usages = [events[-1]["usage"]["completion_tokens"] for events in self.answers.values()]
        return not self.errors and usages == [tokens] * len(self._threads)


def test_boot_ends_with_an_engine_that_serves_clients_with_its_key(
    cloud: EmbeddedCloud, instance: dict[str, Any]
) -> None:
    address = instance["PrivateIpAddress"]
    found = status(address)
    assert [step["step"] for step in found["boot"]] == ["disks", "cache", "engine", "warm-up"]
    wait_for(
        "the exporter",
        lambda: "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in httpx.get(f"http://{address}:9400/metrics", timeout=60).text,
    )

    url, request = f"http://{address}:8000/v1/completions", {"model": "chat", "prompt": "hello"}
    assert httpx.post(url, json=request, timeout=60).status_code == 401
    answer = httpx.post(url, json=request, headers=WITH_KEY, timeout=60)
    assert answer.headers["X-Simulated-Engine"] == "true"
    assert answer.json()["choices"][0]["text"]


def test_a_preempted_instance_loses_no_request_and_is_terminated_in_time(
    cloud: EmbeddedCloud, instance: dict[str, Any]
) -> None:
    address = instance["PrivateIpAddress"]
    streams = Streams(address, count=20, tokens=200)
    cloud.control("preempt", {"instance": instance["InstanceId"], "notice_s": 60})
    found = wait_until(address, "draining", 50)
    assert found["reason"] == "preempted by its cloud"
    assert streams.all_whole(200)
    wait_until(address, "drained", 50)
    wait_for("the end of the instance", lambda: cloud.is_terminated(instance["InstanceId"]), 120)


def test_instance_terminated_by_its_group_drains_until_its_hook_is_completed(
    cloud: EmbeddedCloud, instance: dict[str, Any]
) -> None:
    address = instance["PrivateIpAddress"]
    streams = Streams(address, count=4, tokens=150)
    cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=instance["InstanceId"], ShouldDecrementDesiredCapacity=False
    )
    assert streams.all_whole(150)
    wait_until(address, "drained", 60)
    assert not cloud.is_terminated(instance["InstanceId"]), "its lifecycle hook is not completed"
    complete(cloud, instance)
    # far earlier than the timeout of the hook, 120 s
    wait_for("the end of the instance", lambda: cloud.is_terminated(instance["InstanceId"]))


def test_killed_agent_is_restarted_without_failed_requests(cloud: EmbeddedCloud, instance: dict[str, Any]) -> None:
    address = instance["PrivateIpAddress"]
    streams = Streams(address, count=4, tokens=200)
    root = cloud.folder / "machines" / instance["InstanceId"]
    for pid in _agents(root):
        os.kill(pid, signal.SIGKILL)
    wait_until(address, "ready", 60)
    assert streams.all_whole(200)
    # The restarted agent no longer reports its boot. Other tests need an instance that does, so replace this one.
    cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=instance["InstanceId"], ShouldDecrementDesiredCapacity=False
    )
    wait_until(address, "drained", 60)
    complete(cloud, instance)
    wait_for("the end of the instance", lambda: cloud.is_terminated(instance["InstanceId"]))


def complete(cloud: EmbeddedCloud, instance: dict[str, Any]) -> None:
    """Complete the hook, as the control host does in its next pass."""
    calls = AwsCalls("us-east-1", cloud.client)
    assert AwsGroups(calls).complete_hooks("chat-spot", serving=(), drained=[instance["InstanceId"]]) == {}


def _agents(root: Path) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(word.endswith("gpufleet-node.pyz") and str(root) in word for word in arguments) and "run" in arguments:
            found.append(int(entry.name))
    return found


def test_instance_calls_only_actions_that_its_role_allows(cloud: EmbeddedCloud, instance: dict[str, Any]) -> None:
    assert status(instance["PrivateIpAddress"])["ready"]
    made = {
        f"{call['service']}:{call['operation']}"
        for call in cloud.control("calls")
        if call["principal"].startswith("gpu-instance/")
    }
    assert "s3:GetObject" in made
    assert made - {"s3:HeadObject"} <= signed.ACTIONS
