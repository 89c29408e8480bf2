"""Faults of instances: engines that hang, missing GPUs, suspended agents, models that no engine can load."""

import json
import shutil
import time
from typing import Final

import httpx

from serving.cache import manifest, publish
from tests.chaos import processes
from tests.chaos.evidence import BrokenGpu
from tests.chaos.fault import Memory, Step
from tests.chaos.market import spot_of, take
from tests.chaos.testbed import FLEET, ChaosError, ChaosTestbed
from tests.fixtures.e2e.embedded_cloud import BUCKET, wait_for

SEEN_LIMIT_S: Final = 180.0
_MODEL: Final = ("--name", "chat", "--bucket", f"s3://{BUCKET}", "--fleet", FLEET, "--direct")


def broken(what: str, value: float | None = None) -> Step:
    """One spot instance of chat with this fault of the embedded cloud."""

    def step(testbed: ChaosTestbed, memory: Memory) -> None:
        chosen = memory.held["instance"] = spot_of(testbed)[0]["id"]
        testbed.taken.add(chosen)
        testbed.cloud.control("fault", {"instance": chosen, "what": what, "value": value})

    return step


def clear(testbed: ChaosTestbed, memory: Memory) -> None:
    testbed.delete("fault")


def lose_gpus(testbed: ChaosTestbed, memory: Memory) -> None:
    """First the XID error, which is read, then the loss of the GPUs."""
    began = time.time()
    broken("xid", 79)(testbed, memory)
    name = memory.held["instance"]
    wait_for("the XID read", lambda: _xid(testbed, name) == "79", SEEN_LIMIT_S)
    testbed.cloud.control("fault", {"instance": name, "what": "gpus", "value": 0})
    memory.held["began"], memory.held["missing"] = began, time.time()


def _xid(testbed: ChaosTestbed, instance: str) -> str | None:
    query = {"query": f'max(DCGM_FI_DEV_XID_ERRORS{{instance_id="{instance}"}})'}
    found = httpx.get(f"{testbed.prometheus_url}/api/v1/query", params=query, timeout=60).json()["data"]["result"]
    return found[0]["value"][1] if found else None


def give_gpus_back(testbed: ChaosTestbed, memory: Memory) -> None:
    held = memory.held
    missing = (held["missing"], time.time())
    testbed.broken.append(
        BrokenGpu(instance=held["instance"], error=(held["began"], held["missing"]), missing=missing)
    )
    clear(testbed, memory)


def kill_agents(testbed: ChaosTestbed, memory: Memory) -> None:
    """SIGKILL to the node agent of every instance of chat. Requests in progress continue."""
    for one in testbed.instances("chat"):
        processes.kill(processes.find(f"{testbed.folder}/machines/{one['id']}/", "gpufleet-node.pyz run"))


def kill_engine(testbed: ChaosTestbed, memory: Memory) -> None:
    """SIGKILL to the engine of one instance, during requests."""
    chosen = spot_of(testbed)[0]["id"]
    testbed.taken.add(chosen)
    testbed.kills.append(
        processes.kill(processes.find("localcloud.engine serve", f"{testbed.folder}/machines/{chosen}/"))
    )


def silence_metadata(testbed: ChaosTestbed, memory: Memory) -> None:
    """No metadata service responds, and the cloud interrupts an instance, which learns of it when the service
    responds again."""
    for one in testbed.instances("chat"):
        testbed.cloud.control("fault", {"instance": one["id"], "what": "metadata", "value": None})
    take(testbed, spot_of(testbed)[:1])


def bad_revision(testbed: ChaosTestbed, memory: Memory) -> None:
    """A model whose configuration no engine can read. Its files are complete, so publishing accepts it."""
    source = testbed.folder / f"bad-model-{time.time_ns()}"
    shutil.copytree(next(path for path in (testbed.folder / "models").iterdir() if path.is_dir()), source)
    configuration = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(configuration | {"num_hidden_layers": "many"}))
    described = manifest.describe(source, name="chat", revision=source.name)
    publish.add(testbed.cloud, source, described)
    done = testbed.gpufleet("model", "rollout", *_MODEL, "--limit", "300s", described.digest, codes=(0, 1))
    if "rolled back" not in done.stdout + done.stderr:
        raise ChaosError(f"a broken revision was rolled out, or was not rolled back: {done.stdout}{done.stderr}")


def roll_back(testbed: ChaosTestbed, memory: Memory) -> None:
    testbed.gpufleet("model", "rollback", *_MODEL, "--limit", "300s")
