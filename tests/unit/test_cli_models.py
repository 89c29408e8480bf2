"""`gpufleet model`, `cache` and `size` from a folder to a checked cache."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import build
from cli.output import UserError
from localcloud import tiny_model


def run(*words: str | Path, code: int = 0) -> Any:
    """Run a command with --json; its document."""
    done = CliRunner().invoke(build(), [str(word) for word in (*words, "--json")])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model.make(tmp_path / "model")
    return tmp_path / "model"


def add(folder: Path, bucket: Path, revision: str = "first") -> str:
    return run("model", "add", folder, "--name", "chat", "--bucket", bucket, "--revision", revision)["digest"]


def test_from_a_folder_to_a_checked_cache(model: Path, tmp_path: Path) -> None:
    bucket, cache = tmp_path / "bucket", tmp_path / "cache"
    digest = add(model, bucket)
    with pytest.raises(UserError, match=r"served\.json"):
        run("cache", "sync", bucket / "models/chat", "--to", cache)
    run("model", "rollout", digest, "--name", "chat", "--bucket", bucket)
    first = run("cache", "sync", bucket / "models/chat", "--to", cache)
    assert (first["digest"], first["fetched"]) == (digest, first["size"])
    assert run("cache", "sync", bucket / "models/chat", "--to", cache)["fetched"] == 0
    assert [row["digest"] for row in run("cache", "ls", "--to", cache)] == [digest]
    assert run("cache", "verify", "--to", cache)[0]["wrong"] == []
    weights = next(Path(first["path"]).glob("*.safetensors"))
    body = bytearray(weights.read_bytes())
    body[-100] ^= 1
    weights.write_bytes(body)
    (found,) = run("cache", "verify", "--to", cache, code=3)
    assert weights.name in found["wrong"][0]
    run("cache", "evict", digest[:12], "--to", cache)
    assert run("cache", "ls", "--to", cache) == []


def test_the_same_bytes_are_stored_once(model: Path, tmp_path: Path) -> None:
    words = ("model", "add", model, "--name", "chat", "--bucket", tmp_path / "bucket", "--revision", "r")
    assert run(*words)["added"] is True
    assert run(*words)["added"] is False


def test_roll_out_and_roll_back(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    at = ("--name", "chat", "--bucket", bucket)
    first = add(model, bucket)
    tiny_model.make(model, tiny_model.Shape(seed=1))
    second = add(model, bucket, "second")
    assert first != second
    run("model", "rollout", first, *at)
    run("model", "rollout", second, *at)
    assert [(row["digest"], row["served"]) for row in run("model", "show", *at)] == [(second, True), (first, False)]
    assert run("model", "rollback", *at)["served"] == first
    assert run("model", "rollout", second[:12], *at)["served"] == second
    with pytest.raises(UserError, match="whole digest"):
        run("model", "rollout", "abc", *at)
    with pytest.raises(UserError, match="no such revision"):
        run("model", "rollout", "0" * 64, *at)


def test_a_model_says_what_it_is(model: Path, tmp_path: Path) -> None:
    added = run("model", "add", model, "--name", "chat", "--bucket", tmp_path / "bucket", "--licence", "apache-2.0")
    facts = added["facts"]
    assert (facts["family"], facts["max_context"], facts["licence"]) == ("llama", 2048, "apache-2.0")
    assert 1e6 < facts["parameters"] < 2e6


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_sizes_from_a_folder_and_from_a_bucket(model: Path, tmp_path: Path, where: str) -> None:
    target = model
    if where == "bucket":
        digest = add(model, tmp_path / "bucket")
        run("model", "rollout", digest, "--name", "chat", "--bucket", tmp_path / "bucket")
        target = tmp_path / "bucket/models/chat"
    found = run("size", target, "--gpu", "g6.xlarge", "--gpu", "T4", "--context", "1024")
    # the headers' bytes are the files' but for the headers themselves
    assert found["model"]["weights_bytes"] == pytest.approx(
        sum(f.stat().st_size for f in model.glob("*.safe*")), rel=0.01
    )
    assert [row["on"] for row in found["fits"]] == ["g6.xlarge", "T4"]
    assert all(row["fits"] for row in found["fits"])
    assert "half" in found["fits"][1]["engine_args"]


def test_what_cannot_be_sized_is_said(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="longer than the model's 2048"):
        run("size", model, "--context", "99999")
    with pytest.raises(UserError, match="g6.xlarge"):
        run("size", model, "--gpu", "g6.xlrge")
    with pytest.raises(UserError, match=r"config\.json"):
        run("size", tmp_path / "nothing")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "novel"}))
    with pytest.raises(UserError, match="novel"):
        run("size", model)


def test_nothing_that_fits_is_exit_3(model: Path) -> None:
    found = run("size", model, "--gpu", "T4", "--concurrency", "100000000", code=3)
    assert "were asked for" in found["fits"][0]["reason"]


def test_unknown_places_are_said(model: Path) -> None:
    with pytest.raises(UserError, match="ftp"):
        run("model", "add", model, "--name", "chat", "--bucket", "ftp://x/y")
    with pytest.raises(UserError, match="no bucket"):
        run("cache", "sync", "s3:///models/chat")
