"""Tests that each field has one owner on Google Cloud, on the real engine: a written size survives refresh, preview
and a new template.
"""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.domain.model import CapacityType
from gpufleet.settings import document
from gpufleet.settings.document import FleetDocument
from tests.fixtures.local_token import BEARER, TOKEN
from tests.fixtures.networks import free_network
from tests.fixtures.stacks.engine import ROOT, Engine, embedded_cloud, make_engine

pytestmark = [pytest.mark.slow, pytest.mark.long]

NETWORK = free_network()
STACK = "gcp-local"
PROJECT = "gpu-fleet-local"
BUCKET = "gpu-fleet-local-gcp-models"
SECRETS = ("gpu-fleet-local-engine-key", "gpu-fleet-local-order-key")
"""Names of secrets."""
LIMIT_S = 120


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with embedded_cloud(folder / "cloud", NETWORK):
        made = make_engine(folder, NETWORK)
        post(made, f"/storage/v1/b?project={PROJECT}", {"name": BUCKET, "location": "US"})
        secrets = f"/v1/projects/{PROJECT}/secrets"
        value = base64.b64encode(b"x" * 32).decode()
        for name in SECRETS:
            post(made, f"{secrets}?secretId={name}", {"replication": {"automatic": {}}})
            post(made, f"{secrets}/{name}:addVersion", {"payload": {"data": value}})
        made.settings(STACK)
        made.run("stack", "init", STACK)
        yield made


def endpoint(engine: Engine) -> str:
    return engine.environment["GPUFLEET_COMPUTE_ENDPOINT"]


def post(engine: Engine, path: str, body: Any) -> None:
    url = f"{endpoint(engine)}{path}"
    httpx.post(url, json=body, headers=BEARER, trust_env=False, timeout=LIMIT_S).raise_for_status()


def settings(engine: Engine, disk_gib: int = 100) -> None:
    """Write the shipped settings with this test's network. Pool `batch` also has flex-start."""
    config = engine.settings(STACK)
    fleet: dict[str, Any] = config["config"]["gpu-fleet:fleet"]
    fleet["network"]["cidr"] = f"{NETWORK}.64.0/18"
    fleet["machines"]["disk_gib"] = disk_gib
    capacity: dict[str, Any] = fleet["pools"][1]["capacity"]
    capacity["flex_start"] = {"max": 1, "machine_type": "g2-standard-8", "zone": "us-central1-b", "run": "1d"}
    engine.settings(STACK, config)


def get(engine: Engine, path: str) -> httpx.Response:
    url = f"{endpoint(engine)}{path}"
    return httpx.get(url, headers=BEARER, trust_env=False, timeout=LIMIT_S).raise_for_status()


def fleet_document(engine: Engine) -> FleetDocument:
    path = document.PATH_IN_BUCKET.replace("/", "%2F")
    found = get(engine, f"/storage/v1/b/{BUCKET}/o/{path}?alt=media")
    return document.parse(found.content, "the bucket")


def templates(engine: Engine) -> set[str]:
    found = get(engine, f"/compute/v1/projects/{PROJECT}/global/instanceTemplates").json()
    return {item["name"] for item in found.get("items", [])}


def test_sizes_belong_to_watchdogs_and_shape_to_pulumi(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(engine)
    # email addresses are known now, so policies can check what they could not check in the preview
    engine.run("up", "--yes", "--skip-preview", "--policy-pack", str(ROOT / "policies"), "--stack", STACK)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    engine.run("refresh", "--yes", "--skip-preview", "--stack", STACK)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    before = templates(engine)

    monkeypatch.setenv("GPUFLEET_COMPUTE_ENDPOINT", endpoint(engine))
    monkeypatch.setenv("GPUFLEET_EMULATOR_TOKEN", TOKEN)
    described = fleet_document(engine)
    names = [group.name for pool in described.pools for group in pool.groups]
    watchdog = GoogleGroups(GoogleCalls(PROJECT), described)
    at_creation = {group.name: group.desired for group in watchdog.groups(names)}
    assert sum(at_creation.values()) == 5, "reserved 1, spot 2 of chat and 2 of batch, on-demand and flex-start 0"
    (flex_start,) = described.pool("batch").groups_of(CapacityType.FLEX_START)
    assert at_creation[flex_start.name] == 0

    # every kind of write by a watchdog: from 0 to 1, and from any other size to 0
    written = {name: 1 - min(size, 1) for name, size in at_creation.items()}
    for group in watchdog.groups(names):
        watchdog.resize(group, written[group.name])
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    engine.run("refresh", "--yes", "--skip-preview", "--stack", STACK)
    engine.run("preview", "--expect-no-changes", "--stack", STACK)
    assert {group.name: group.desired for group in watchdog.groups(names)} == written

    settings(engine, disk_gib=120)
    engine.run("up", "--yes", "--skip-preview", "--stack", STACK)
    assert templates(engine).isdisjoint(before), "every template was recreated"
    assert {group.name: group.desired for group in watchdog.groups(names)} == written
    engine.run("preview", "--expect-no-changes", "--stack", STACK)

    engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK)
    assert templates(engine) == set()
