"""`gpufleet model` with buckets of both embedded clouds: add from one bucket, list, approve, roll out."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage

from gpufleet.toolchain.folders import ROOT
from localcloud import tiny_model
from tests.fixtures import local_token
from tests.fixtures.clouds.emulator import RunningCloud

pytestmark = pytest.mark.slow
SMALL = tiny_model.TinyModelShape(layers=1, hidden=32, intermediate=32, heads=1, kv_heads=1, shards=2)


def gpufleet(environment: Mapping[str, str], *arguments: str | Path, code: int = 0) -> Any:
    """Run `gpufleet model`. Returns its JSON output, or its error output if `code` is not 0."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "model", *map(str, arguments), "--json"],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else " ".join(done.stderr.split())


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_model_is_copied_between_buckets_and_served_after_approval(
    cloud: RunningCloud, tmp_path: Path, scheme: str
) -> None:
    source, target = f"source-{scheme}-models", f"target-{scheme}-models"
    environment = {"STORAGE_EMULATOR_HOST": cloud.places.google_url, "AWS_ENDPOINT_URL": cloud.places.api_url}
    environment |= {**local_token.KEYS, "AWS_DEFAULT_REGION": "us-east-1"}
    tiny_model.make(tmp_path / "model", SMALL)
    (tmp_path / "model/logo.png").write_bytes(b"left behind")
    s3: Any = cloud.client("s3")
    options = {"api_endpoint": cloud.places.google_url}
    gcs: Any = storage.Client(project="gpu-fleet-local", credentials=local_token.google(), client_options=options)
    for name in (source, target):
        s3.create_bucket(Bucket=name) if scheme == "s3" else gcs.create_bucket(name, location="us-central1")

    def put(path: Path) -> None:
        key = f"teams/a/{path.name}"
        if scheme == "s3":
            s3.upload_file(str(path), source, key)
        else:
            gcs.bucket(source).blob(key).upload_from_filename(str(path))

    for path in sorted((tmp_path / "model").iterdir()):
        put(path)
    at = ("--name", "chat", "--bucket", f"{scheme}://{target}")
    added = gpufleet(environment, "add", f"{scheme}://{source}/teams/a", *at)
    assert added["facts"]["source"] == f"{scheme}://{source}/teams/a"
    assert added["files"] == len(list((tmp_path / "model").iterdir())) - 1
    refused = gpufleet(environment, "rollout", added["digest"][:12], *at, code=1)
    assert "is not approved" in refused and "--environment" in refused
    gpufleet(environment, "approve", added["digest"][:12], *at, "--by", "ada")
    assert gpufleet(environment, "rollout", added["digest"][:12], *at)["served"] == added["digest"]
    (row,) = gpufleet(environment, "ls", "--bucket", f"{scheme}://{target}")
    assert (row["model"], row["revisions"], row["served"]) == ("chat", 1, added["digest"])
    (shown,) = gpufleet(environment, "show", *at)
    assert shown["approved"]["by"] == "ada"
    # a pickle file next to the weights is refused and not copied
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    put(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in gpufleet(environment, "add", f"{scheme}://{source}/teams/a", *at, code=1)
