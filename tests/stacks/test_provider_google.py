"""Runs the real Pulumi engine with every modelled Google type, against the embedded Compute Engine."""

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.local_token import BEARER
from tests.fixtures.networks import free_network
from tests.fixtures.stacks.engine import Engine, embedded_cloud, make_engine

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("programs") / "everything_google.py"
PROJECT = "gpu-fleet-local"
SECRET = "everything-token"  # noqa: S105 - its name
LIMIT_S = 120


class Stack:
    """A separate project with one program, on its own embedded cloud."""

    def __init__(self, engine: Engine, folder: Path, network: str) -> None:
        folder.mkdir()
        runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
        (folder / "Pulumi.yaml").write_text(json.dumps({"name": "proof", "runtime": runtime}))
        self.folder = folder
        self._engine = Engine(folder=folder, pulumi=engine.pulumi, environment=engine.environment)
        self._endpoint = engine.environment["GPUFLEET_COMPUTE_ENDPOINT"]
        self.run("stack", "init", "proof")
        for key, value in {
            "gcp:project": PROJECT, "gcp:region": "us-central1", "network": network, "secret": SECRET,
        }.items():  # fmt: skip
            self.run("config", "set", key, value)

    def run(self, *arguments: str, fails: bool = False) -> str:
        return self._engine.run(*arguments, fails=fails)

    def up(self, **kwargs: bool) -> str:
        return self.run("up", "--yes", "--skip-preview", **kwargs)

    def program(self, text: str) -> None:
        (self.folder / "__main__.py").write_text(text)

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.run("stack", "output", "--json", "--show-secrets"))

    def ask(self, path: str, body: Any = None) -> Any:
        method = "GET" if body is None else "POST"
        answer = httpx.request(
            method, f"{self._endpoint}{path}", json=body, headers=BEARER, trust_env=False, timeout=LIMIT_S
        ).raise_for_status()
        return answer.json()

    def items(self, path: str) -> list[str]:
        return sorted(item["name"] for item in self.ask(path).get("items", []))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder, network = tmp_path_factory.mktemp("google"), free_network()
    with embedded_cloud(folder / "cloud", network):
        made = Stack(make_engine(folder, network), folder / "program", network)
        secrets = f"/v1/projects/{PROJECT}/secrets"
        made.ask(f"{secrets}?secretId={SECRET}", {"replication": {"automatic": {}}})
        value = base64.b64encode(b"x" * 32).decode()
        made.ask(f"{secrets}/{SECRET}:addVersion", {"payload": {"data": value}})
        yield made


def assert_no_drift(stack: Stack) -> None:
    """Check that neither the program nor the cloud shows a difference: the resources match the declaration."""
    stack.run("preview", "--expect-no-changes", "--diff")
    stack.run("refresh", "--yes", "--skip-preview", "--expect-no-changes", "--diff")


def test_every_type_is_created_updated_and_deleted_without_drift(stack: Stack) -> None:
    stack.program(PROGRAM.read_text())
    stack.run("preview")
    stack.up()
    first = stack.outputs()
    assert first["bucket"].startswith("models-")
    assert first["labels"] == {"team": "one", "goog-pulumi-provisioned": "true"}
    assert_no_drift(stack)

    stack.run("config", "set", "second", "true")
    stack.up()
    second = stack.outputs()
    assert second["machine"] == first["machine"], "a machine type is changed in place"
    assert second["reservation"] == first["reservation"]
    assert second["template"] != first["template"], "a template is recreated"
    assert second["generation"] != first["generation"]
    assert second["labels"]["team"] == "two"
    body = stack.ask(f"/storage/v1/b/{second['bucket']}/o/fleet%2Ffleet.json?alt=media")
    assert body == {"team": "two"}
    assert_no_drift(stack)

    stack.run("destroy", "--yes", "--skip-preview")
    for place in (
        "global/networks", "global/firewalls", "global/healthChecks", "global/instanceTemplates",
        "regions/us-central1/subnetworks", "regions/us-central1/routers", "regions/us-central1/backendServices",
        "regions/us-central1/forwardingRules", "regions/us-central1/instanceGroupManagers",
        "zones/us-central1-a/instances", "zones/us-central1-a/disks", "zones/us-central1-a/reservations",
        "zones/us-central1-a/instanceGroupManagers",
    ):  # fmt: skip
        assert stack.items(f"/compute/v1/projects/{PROJECT}/{place}") == [], place


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param('gcp.compute.Network("net", name="Prod")', "is not a Compute Engine name", id="name"),
        pytest.param(
            'gcp.compute.Disk("d", zone="us-central1-a", labels={"gpu-fleet:pool": "a"})', "is not a label key",
            id="label",
        ),
        pytest.param(
            'gcp.compute.Network("net", routing_mode="EVERYWHERE")', "expected one of GLOBAL, REGIONAL", id="enum"
        ),
        pytest.param('gcp.compute.Network("net", mtu="big")', "expected a whole number", id="type"),
        pytest.param('gcp.compute.Autoscaler("a", target="t", autoscaling_policy={"max_replicas": 1})',
                     "has no model of gcp:compute/autoscaler:Autoscaler", id="unknown type"),
    ],
)  # fmt: skip
def test_the_preview_refuses_what_google_refuses(stack: Stack, wrong: str, message: str) -> None:
    stack.program(f"import pulumi_gcp as gcp\n{wrong}\n")
    assert message in stack.run("preview", fails=True)


def test_a_refusal_by_the_cloud_has_its_message(stack: Stack) -> None:
    stack.program(
        'import pulumi_gcp as gcp\ngcp.compute.Network("a", name="same")\n'
        'gcp.compute.Network("b", name="same", opts=__import__("pulumi").ResourceOptions(depends_on=[]))\n'
    )
    output = stack.up(fails=True)
    assert "Error creating Network: googleapi: Error 409" in output
    assert "already exists" in output
    stack.program("import pulumi\n")
    stack.up()


def test_state_of_a_real_project_is_not_changed(stack: Stack) -> None:
    stack.program(
        'import pulumi_gcp as gcp\ngcp.compute.Network("net", name="real", auto_create_subnetworks=False)\n'
    )
    stack.up()
    mine = stack.run("stack", "export")
    exported = json.loads(mine)
    for resource in exported["deployment"]["resources"]:
        resource.get("outputs", {}).pop("__local", None)
    (stack.folder / "state.json").write_text(json.dumps(exported))
    stack.run("stack", "import", "--file", "state.json")
    output = stack.run("destroy", "--yes", "--skip-preview", fails=True)
    assert "was not made by the local provider" in output
    assert "gcp-local" in output
    assert stack.items(f"/compute/v1/projects/{PROJECT}/global/networks") == ["real"]
    # later tests use the same stack
    (stack.folder / "state.json").write_text(mine)
    stack.run("stack", "import", "--file", "state.json")
