"""`gpufleet bootstrap` for Google Cloud, with the embedded cloud."""

import base64
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cli.commands import build
from gpufleet.clouds.gcp.bootstrap import Foundation, GoogleRest, steps
from gpufleet.clouds.gcp.calls import ENDPOINT
from gpufleet.clouds.order_key import OrderKey
from gpufleet.domain.activity import CloudError
from serving import engine_container
from tests.fixtures.clouds.emulator import RunningCloud
from tests.fixtures.local_token import BEARER
from tests.fixtures.networks import served

PROJECT, REGION = "gpu-fleet-local", "us-central1"


def bootstrap(cloud: RunningCloud, environment: str, *more: str) -> tuple[int, Any]:
    """Run `gpufleet bootstrap`. Returns the exit code and the JSON output."""
    # --shared-project, because all tests use one project
    arguments = [
        "bootstrap",
        environment,
        "--region",
        REGION,
        "--project",
        PROJECT,
        "--shared-project",
        "--json",
        *more,
    ]
    done = CliRunner().invoke(build("bootstrap"), arguments, env={ENDPOINT: cloud.places.google_url})
    assert done.exit_code in (0, 3), (done.output, done.exception)
    return done.exit_code, json.loads(done.stdout)


def held(cloud: RunningCloud, path: str) -> Mapping[str, Any]:
    return (
        httpx.get(f"{cloud.places.google_url}{path}", headers=BEARER, trust_env=False, timeout=60)
        .raise_for_status()
        .json()
    )


def test_resources_are_listed_then_created_then_found(cloud: RunningCloud) -> None:
    buckets = held(cloud, f"/storage/v1/b?project={PROJECT}").get("items", [])
    shared = any(bucket["name"] == f"gpu-fleet-state-{PROJECT}" for bucket in buckets)  # created by another test
    code, answer = bootstrap(cloud, "dev")
    assert (code, answer["missing"]) == (3, 3 if shared else 4)
    assert answer["orders"]["public_keys"] == []
    code, answer = bootstrap(cloud, "dev", "--apply")
    assert (code, answer["missing"]) == (0, 0)
    assert answer["PULUMI_BACKEND_URL"] == f"gs://gpu-fleet-state-{PROJECT}"
    key = f"projects/{PROJECT}/locations/{REGION}/keyRings/gpu-fleet/cryptoKeys/dev"
    assert answer["secrets_provider"] == f"gcpkms://{key}"
    assert held(cloud, f"/v1/{key}")["rotationPeriod"] == "31536000s"
    bucket = held(cloud, f"/storage/v1/b/gpu-fleet-state-{PROJECT}")
    assert bucket["versioning"] == {"enabled": True}
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    names = (answer["engine_key"], answer["orders"]["private_key"])
    first = [value(cloud, name) for name in names]
    assert engine_container.is_key(first[0])
    assert answer["orders"]["public_keys"] == [OrderKey(first[1]).public.text]

    assert bootstrap(cloud, "dev", "--apply")[0] == 0
    assert [value(cloud, name) for name in names] == first
    assert bootstrap(cloud, "prod")[1]["missing"] == 3  # both environments share the bucket


def value(cloud: RunningCloud, name: str) -> str:
    found = held(cloud, f"/v1/projects/{PROJECT}/secrets/{name}/versions/latest:access")
    return base64.b64decode(found["payload"]["data"]).decode()


def test_the_entries_for_the_settings_file_are_printed(cloud: RunningCloud) -> None:
    arguments = ["bootstrap", "printed", "--region", REGION, "--project", PROJECT, "--shared-project", "--apply"]
    done = CliRunner().invoke(build("bootstrap"), arguments, env={ENDPOINT: cloud.places.google_url})
    public = bootstrap(cloud, "printed")[1]["orders"]["public_keys"][0]
    assert done.stdout.splitlines()[2:] == [
        "# in stacks/config/Pulumi.gcp-printed.yaml, below gpu-fleet:fleet:",
        "#   engine_key: gpu-fleet-printed-engine-key",
        "#   orders:",
        "#     private_key: gpu-fleet-printed-order-key",
        f"#     public_keys: [{public}]",
    ]


def test_a_project_of_another_environment_is_refused(cloud: RunningCloud) -> None:
    bootstrap(cloud, "first", "--apply")
    arguments = ["bootstrap", "second", "--region", REGION, "--project", PROJECT, "--apply"]
    done = CliRunner().invoke(build("bootstrap"), arguments, env={ENDPOINT: cloud.places.google_url})
    assert done.exit_code != 0
    assert "first" in str(done.exception) and "--shared-project" in str(done.exception)
    assert bootstrap(cloud, "second")[1]["missing"] == 3, "the bucket alone is there"
    assert bootstrap(cloud, "first", "--apply")[0] == 0, "the same environment again"


def test_a_name_of_another_environment_is_refused(cloud: RunningCloud) -> None:
    arguments = [
        "bootstrap",
        "dev",
        "--region",
        REGION,
        "--project",
        PROJECT,
        "--order-key",
        "gpu-fleet-prod-order-key",
    ]
    done = CliRunner().invoke(build("bootstrap"), arguments, env={ENDPOINT: cloud.places.google_url})
    assert done.exit_code != 0
    assert "begin with gpu-fleet-dev-" in str(done.exception or done.output)


UNSET = {
    "versioning": {"versioning": {"enabled": False}},
    "uniform access": {
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "enforced"}
    },
    "prevention of public access": {
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "inherited"}
    },
}


@pytest.mark.parametrize("lacked", UNSET)
def test_missing_bucket_settings_are_applied(
    cloud: RunningCloud, monkeypatch: pytest.MonkeyPatch, lacked: str
) -> None:
    monkeypatch.setenv(ENDPOINT, cloud.places.google_url)
    # a separate project, because other tests count missing resources
    google, wanted = GoogleRest(), Foundation(project="half-made", region=REGION, environment="dev")
    step = next(steps(google, wanted))
    if not step.present:
        step.make()
    google.ask("storage", "PATCH", f"/storage/v1/b/{wanted.bucket}", UNSET[lacked])
    step = next(steps(google, wanted))
    assert not step.present
    assert step.what.endswith(f"it exists and lacks {lacked}")
    step.make()
    assert next(steps(google, wanted)).present


def test_a_bucket_of_another_project_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google returns a bucket of another project by name if that project permits it."""
    name = Foundation(project=PROJECT, region=REGION, environment="dev").bucket
    foreign_bucket = {"name": name, "versioning": {"enabled": True}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, {} if "?project=" in self.path else foreign_bucket)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(409, {"error": {"message": "The requested bucket name is not available."}})

        def reply(self, status: int, body: Mapping[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the log."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_address[1]}")
        step = next(steps(GoogleRest(), Foundation(project=PROJECT, region=REGION, environment="dev")))
        assert not step.present
        with pytest.raises(CloudError, match="bucket name is not available"):
            step.make()


def test_a_secret_without_a_value_gets_one(cloud: RunningCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, cloud.places.google_url)
    wanted = Foundation(project=PROJECT, region=REGION, environment="half")
    google = GoogleRest()
    google.ask("secretmanager", "POST", f"/v1/projects/{PROJECT}/secrets?secretId={wanted.engine_key}", {})
    step = list(steps(google, wanted))[2]
    assert not step.present
    step.make()
    assert list(steps(google, wanted))[2].present


def test_a_refusal_does_not_count_as_absence(cloud: RunningCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, cloud.places.google_url)
    with pytest.raises(CloudError, match="does not have permission"):
        list(steps(GoogleRest(), Foundation(project="other-project", region=REGION, environment="dev")))
