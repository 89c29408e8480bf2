"""Real vLLM on machines of the embedded cloud: from the bucket to the first token, through the router, to the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from localcloud.engine.page import own_name

from gpufleet.domain.model import CapacityType
from localcloud import tiny_model
from serving import metrics
from serving.exposition import parse, total
from serving.instance_settings import EngineSettings, InstanceSettings
from tests.fixtures import signing
from tests.fixtures.e2e.embedded_cloud import EmbeddedCloud, instance_settings, started, status, wait_for, wait_until
from tests.fixtures.networks import free_network
from tests.fixtures.router import router as routers
from tests.fixtures.router.router import FakeFleet, Router
from tests.fixtures.vllm.servers import Streams

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
CONTEXTS = {"chat": 2048, "code": 16384}
BOOT_LIMIT_S = 700


def settings(name: str) -> InstanceSettings:
    return instance_settings(
        name,
        CapacityType.SPOT,
        model=f"models/{name}",
        served_name=name,
        engine=EngineSettings(
            kind="vllm",
            image="gpu-fleet/vllm-cpu@sha256:" + "0" * 64,
            args=("--max-model-len", str(CONTEXTS[name]), "--max-num-seqs", "32"),
        ),
        drain_deadline=timedelta(seconds=60),
        # long, because the machines share two cores with other processes: a quarter of it is for the kill
        drain_margin=timedelta(seconds=30),
    )


@dataclass(frozen=True, slots=True)
class Machines:
    """Two machines with different models, behind one router."""

    cloud: EmbeddedCloud
    router: Router
    instances: dict[str, dict[str, Any]]

    def address(self, name: str) -> str:
        return self.instances[name]["PrivateIpAddress"]

    def generated(self, name: str) -> float:
        page = parse(httpx.get(f"http://{self.address(name)}:8000/metrics", timeout=30).text)
        found = total(page, own_name(metrics.GENERATION_TOKENS))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def machines(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    assert vllm.is_dir()
    folder = tmp_path_factory.mktemp("cloud")
    with started(folder, free_network()) as cloud:
        cloud.publish_model("code", tiny_model.TinyModelShape(seed=1, context=CONTEXTS["code"]))
        for name in CONTEXTS:
            cloud.make_group(f"{name}-spot", cloud.user_data(settings(name)), pool=name)
        instances = {name: cloud.one_member(f"{name}-spot") for name in CONTEXTS}
        for instance in instances.values():
            wait_until(instance["PrivateIpAddress"], "ready", BOOT_LIMIT_S)
        fleet = FakeFleet(key=signing.ENGINE_KEY)
        fleet.written = routers.document(*({"name": name, "model": f"models/{name}"} for name in CONTEXTS))
        fleet.machines = {
            instance["InstanceId"]: routers.instance(instance["InstanceId"], instance["PrivateIpAddress"], name)
            for name, instance in instances.items()
        }
        with routers.running(folder, fleet, request_timeout=timedelta(seconds=120)) as router:
            for instance in instances.values():
                router.until(
                    lambda instance=instance: (router.server(instance["InstanceId"]) or "").startswith("UP"),
                    "a replica is UP",
                )
            yield Machines(cloud, router, instances)


def test_two_machines_boot_serve_and_end(machines: Machines) -> None:
    """One test for everything: separate boots of real vLLM cost too much."""
    _booted_from_the_bucket(machines)
    _each_model_is_served_by_its_own_instance(machines)
    _a_preemption_loses_no_stream(machines)
    _a_request_longer_than_the_notice_is_cut_in_time(machines)


def _booted_from_the_bucket(machines: Machines) -> None:
    for name in CONTEXTS:
        found = status(machines.address(name))
        assert [step["step"] for step in found["boot"]] == ["disks", "cache", "engine", "warm-up"]
        assert all(step["error"] is None for step in found["boot"])
        version = httpx.get(f"http://{machines.address(name)}:8000/version", timeout=30).json()["version"]
        assert version.startswith("0.32.0")
        assert "simulated" not in version


def _each_model_is_served_by_its_own_instance(machines: Machines) -> None:
    for name in CONTEXTS:
        before = {other: machines.generated(other) for other in CONTEXTS}
        answer = machines.router.chat(name, max_tokens=16, ignore_eos=True)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 16
        wait_for("counted tokens", lambda name=name, before=before: machines.generated(name) == before[name] + 16)
        others = [other for other in CONTEXTS if other != name]
        assert {other: machines.generated(other) for other in others} == {other: before[other] for other in others}


def _a_preemption_loses_no_stream(machines: Machines) -> None:
    streams = Streams(machines.router.url, count=20, tokens=1500, model="chat").start()
    wait_for("first words", streams.all_began)
    instance = machines.instances["chat"]
    machines.cloud.control("preempt", {"instance": instance["InstanceId"], "notice_s": 110})
    found = wait_until(machines.address("chat"), "draining", 10)
    assert found["reason"] == "preempted by its cloud"
    usages = streams.usages()
    assert not streams.errors
    assert [usage["completion_tokens"] for usage in usages] == [1500] * 20
    wait_until(machines.address("chat"), "drained", 60)


def _a_request_longer_than_the_notice_is_cut_in_time(machines: Machines) -> None:
    """After a stop request, vLLM runs until its own timeout or hangs with its clients: the agent kills it in time."""
    tokens = CONTEXTS["code"] - 100
    streams = Streams(machines.router.url, count=30, tokens=tokens, model="code", timeout_s=200).start()
    # more than the cache holds at once: some wait, and in total they take far longer than the notice
    wait_for("first words", lambda: streams.events)
    machines.cloud.control("preempt", {"instance": machines.instances["code"]["InstanceId"], "notice_s": 75})
    wait_until(machines.address("code"), "drained", 76)
    finished = [usage for usage in streams.usages() if usage["completion_tokens"] == tokens]
    assert len(finished) < 30
    wait_for(
        "the end of the instance", lambda: machines.cloud.is_terminated(machines.instances["code"]["InstanceId"]), 60
    )
