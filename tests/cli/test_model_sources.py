"""Models from a Hugging Face hub and MLflow: the real clients against a server on loopback and a database."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.toolchain.folders import ROOT
from localcloud import tiny_model
from tests.fixtures import hub

SMALL = tiny_model.TinyModelShape(layers=1, hidden=32, intermediate=32, heads=1, kv_heads=1, shards=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model.make(tmp_path / "model", SMALL)
    return tmp_path / "model"


def add(source: str | Path, bucket: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`gpufleet model add` in a separate process: the clients cache settings for the life of a process."""
    scratch = bucket.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    arguments = [
        "model",
        "add",
        str(source),
        "--name",
        "chat",
        "--bucket",
        str(bucket),
        "--scratch",
        str(scratch),
        "--json",
    ]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT, env={**clean, "HF_HOME": str(bucket.parent / "hf"), **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert list(scratch.iterdir()) == [], "what was fetched is gone"
    return done


def added(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def digests(bucket: Path, digest: str) -> dict[str, str]:
    raw = json.loads((bucket / "models/chat" / digest / "manifest.json").read_text())
    return {file["path"]: file["sha256"] for file in raw["files"]}


@pytest.mark.slow
def test_a_hub_gives_one_commit_its_licence_and_no_pickle(model: Path, tmp_path: Path) -> None:
    plain = digests(tmp_path / "plain", added(add(model, tmp_path / "plain"))["digest"])
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": [1]}))
    (model / "modeling_chat.py").write_text("import os")
    with hub.serving(model) as up:
        done = add("hf://acme/chat", tmp_path / "bucket", HF_ENDPOINT=up.url)
        row = added(done)
        assert not [path for path in up.asked if path.endswith((".bin", ".py"))]
    assert (row["revision"], row["facts"]["licence"]) == (hub.COMMIT, "apache-2.0")
    assert row["facts"]["source"] == f"hf://acme/chat@{hub.COMMIT}"
    assert digests(tmp_path / "bucket", row["digest"]) == plain
    assert "files not used: modeling_chat.py, pytorch_model.bin" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        pytest.param("only pickles", "pickle files are not supported", id="only pickles"),
        pytest.param("climbs", "not a plain relative path", id="a path that climbs"),
        pytest.param("swapped", "expected sha256 000000000000", id="bytes that are not those the hub published"),
        pytest.param("other", "HF_TOKEN", id="a repository that is not there"),
    ],
)
def test_rejected_models_of_a_hub(model: Path, tmp_path: Path, harm: str, message: str) -> None:
    url = "hf://acme/chat"
    (model / "pytorch_model.bin").write_bytes(pickle.dumps([1]))
    with hub.serving(model) as up:
        if harm == "only pickles":
            up.names = ["config.json", "pytorch_model.bin"]
        elif harm == "climbs":
            up.names.append("../../etc/climbs.json")
        elif harm == "swapped":
            up.wrong_hashes["model-00001-of-00002.safetensors"] = "0" * 64
        else:
            url = "hf://acme/other"
        done = add(url, tmp_path / "bucket", HF_ENDPOINT=up.url)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "bucket").exists()


REGISTER = """
import sys, mlflow
from mlflow import MlflowClient
client = MlflowClient()
client.create_registered_model("chat")
client.create_model_version("chat", source=sys.argv[1])
"""


def registry(tmp_path: Path, artifacts: Path) -> dict[str, str]:
    """A local MLflow registry with `artifacts` as version 1 of `chat`. Returns the environment variables for it."""
    environment = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true"}
    subprocess.run(
        [sys.executable, "-c", REGISTER, str(artifacts)],
        env={**os.environ, **environment}, check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    return environment


@pytest.mark.slow
def test_an_mlflow_registry_gives_model_and_tokenizer(model: Path, tmp_path: Path) -> None:
    plain = digests(tmp_path / "plain", added(add(model, tmp_path / "plain"))["digest"])
    artifacts = tmp_path / "artifacts"
    (artifacts / "components/tokenizer").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).rename(artifacts / "components/tokenizer" / name)
    model.rename(artifacts / "model")
    (artifacts / "MLmodel").write_text("flavors: {}\n")
    (artifacts / "requirements.txt").write_text("transformers\n")
    row = added(add("models:/chat/1", tmp_path / "bucket", **registry(tmp_path, artifacts)))
    assert (row["revision"], row["facts"]["source"]) == ("1", "models:/chat/1")
    assert digests(tmp_path / "bucket", row["digest"]) == plain


@pytest.mark.slow
def test_a_pickled_model_of_mlflow_is_refused(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "model.pkl").write_bytes(pickle.dumps([1]))
    environment = registry(tmp_path, artifacts)
    done = add("models:/chat/1", tmp_path / "bucket", **environment)
    assert done.returncode == 1
    assert "pickle files are not supported" in " ".join(done.stderr.split())
    missing = add("models:/none/1", tmp_path / "bucket", **environment)
    assert missing.returncode == 1
    assert "MLFLOW_TRACKING_URI" in missing.stderr


def test_unknown_sources_are_named(tmp_path: Path) -> None:
    done = add("ftp://x/y", tmp_path / "bucket")
    assert done.returncode == 2
    assert "models:/NAME/VERSION" in " ".join(done.stderr.split())
