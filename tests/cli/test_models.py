"""`gpufleet model`, `cache` and `size`, from a folder to a verified cache."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.errors import AppError, ErrorCode
from app.models import ModelRegistry
from app.stores import open_place
from cli.commands import build
from localcloud import tiny_model
from tests.fixtures.model_document import DOCUMENT


def run(*arguments: str | Path, code: int = 0) -> Any:
    """Run a command with --json. Returns its document."""
    done = CliRunner().invoke(build(), [str(argument) for argument in (*arguments, "--json")])
    if isinstance(done.exception, AppError):
        raise done.exception
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model.make(tmp_path / "model")
    return tmp_path / "model"


def add(folder: Path, bucket: Path, revision: str = "first") -> str:
    return run("model", "add", folder, "--name", "chat", "--bucket", bucket, "--revision", revision)["digest"]


def test_from_a_folder_to_a_verified_cache(model: Path, tmp_path: Path) -> None:
    bucket, cache = tmp_path / "bucket", tmp_path / "cache"
    digest = add(model, bucket)
    with pytest.raises(AppError, match=r"served\.json"):
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
    arguments = ("model", "add", model, "--name", "chat", "--bucket", tmp_path / "bucket", "--revision", "r")
    assert run(*arguments)["added"] is True
    assert run(*arguments)["added"] is False


def test_roll_out_and_roll_back(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    at = ("--name", "chat", "--bucket", bucket)
    first = add(model, bucket)
    tiny_model.make(model, tiny_model.TinyModelShape(seed=1))
    second = add(model, bucket, "second")
    assert first != second
    run("model", "rollout", first, *at)
    run("model", "rollout", second, *at)
    assert [(row["digest"], row["served"]) for row in run("model", "show", *at)] == [(second, True), (first, False)]
    assert run("model", "rollback", *at)["served"] == first
    assert run("model", "rollout", second[:12], *at)["served"] == second
    assert run("model", "rollback", *at)["served"] == first
    assert run("model", "rollback", *at)["served"] == second
    with pytest.raises(AppError, match="whole digest"):
        run("model", "rollout", "abc", *at)
    with pytest.raises(AppError, match="no such revision"):
        run("model", "rollout", "0" * 64, *at)


def test_models_and_revisions_are_listed_served_or_not(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    first = add(model, bucket)
    # a revision that was not added completely is not listed
    (bucket / "models/chat" / ("0" * 64) / "files").mkdir(parents=True)
    assert run("model", "ls", "--bucket", bucket) == [
        {"model": "chat", "revisions": 1, "served": None, "revision": None, "size": None}
    ]
    run("model", "rollout", first[:12], "--name", "chat", "--bucket", bucket)
    (row,) = run("model", "ls", "--bucket", bucket)
    assert (row["served"], row["revision"]) == (first, "first")
    (row,) = run("model", "show", "--name", "chat", "--bucket", bucket)
    assert (row["digest"], row["served"], row["approved"]) == (first, True, None)
    with pytest.raises(AppError, match="does not contain model other"):
        run("model", "show", "--name", "other", "--bucket", bucket)


def of_environment(bucket: Path, environment: str) -> Path:
    """Writes the files that `pulumi up` of an environment creates."""
    path = bucket / "fleet/fleet.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**DOCUMENT, "environment": environment}))
    return path


def test_production_serves_only_approved_revisions(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    at = ("--name", "chat", "--bucket", bucket)
    first = add(model, bucket)
    of_environment(bucket, "prod")
    with pytest.raises(AppError, match=f"not approved.*gpufleet model approve {first[:12]}") as refused:
        run("model", "rollout", first, *at)
    assert refused.value.code is ErrorCode.FAILED
    assert not (bucket / "models/chat/served.json").exists()
    run("model", "approve", first[:12], *at, "--by", "ada", "--note", "EVAL-7")
    assert run("model", "rollout", first, *at)["served"] == first
    (row,) = run("model", "show", *at)
    assert (row["approved"]["by"], row["approved"]["note"]) == ("ada", "EVAL-7")
    # an approval of one revision does not apply to another
    tiny_model.make(model, tiny_model.TinyModelShape(seed=1))
    second = add(model, bucket, "second")
    notes = bucket / "approvals/chat"
    (notes / f"{second}.json").write_bytes((notes / f"{first}.json").read_bytes())
    with pytest.raises(AppError, match="approve the revision again"):
        run("model", "rollout", second, *at)
    with pytest.raises(AppError, match="no such revision"):
        run("model", "approve", "0" * 64, *at)


def test_approval_is_required_only_for_production(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    at = ("--name", "chat", "--bucket", bucket)
    first = add(model, bucket)
    fleet = of_environment(tmp_path / "elsewhere", "prod")
    with pytest.raises(AppError, match="served in prod"):
        run("model", "rollout", first, *at, "--fleet", fleet)
    with pytest.raises(AppError, match="served in prod"):
        run("model", "rollout", first, *at, "--environment", "prod")
    of_environment(bucket, "dev")
    assert run("model", "rollout", first, *at)["served"] == first


def test_rollout_without_a_fleet_reports_that_running_instances_stay(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    first = add(model, bucket)
    arguments = ["model", "rollout", first, "--name", "chat", "--bucket", str(bucket)]
    stderr = " ".join(CliRunner().invoke(build(), arguments).stderr.split())
    assert "continue to serve their own revision" in stderr and "--fleet URL" in stderr


def test_killed_rollback_resumes_in_the_same_direction(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    at = ("--name", "chat", "--bucket", bucket)
    first = add(model, bucket)
    tiny_model.make(model, tiny_model.TinyModelShape(seed=1))
    second = add(model, bucket, "second")
    run("model", "rollout", first, *at)
    run("model", "rollout", second, *at)
    # the state after a `rollback --fleet` that died after it wrote its history, or after it wrote served.json
    registry = ModelRegistry(str(bucket), "chat")
    for dies_after in ("history", "served.json"):
        registry.write_history(registry.history().with_served(second, going_back_to=first))
        if dies_after == "served.json":
            registry.serve(first, going_back=True)
        fleet = of_environment(tmp_path / "elsewhere", "dev")
        assert run("model", "rollback", *at, "--fleet", fleet)["served"] == first
        assert registry.history().going_back_to is None
        # the rollback is complete, so another rollback selects the other revision
        assert run("model", "rollback", *at)["served"] == second


def test_rollout_without_a_digest_resumes_the_served_revision(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    at = ("--name", "chat", "--bucket", bucket)
    with pytest.raises(AppError, match="no revision is served yet"):
        run("model", "rollout", *at)
    first = add(model, bucket)
    run("model", "rollout", first, *at)
    assert run("model", "rollout", *at) == {"model": "chat", "served": first, "before": first, "changed": {}}


def test_added_model_has_facts(model: Path, tmp_path: Path) -> None:
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
    # the headers list all bytes of the files, except for the headers themselves
    assert found["model"]["weights_bytes"] == pytest.approx(
        sum(f.stat().st_size for f in model.glob("*.safe*")), rel=0.01
    )
    assert [row["on"] for row in found["fits"]] == ["g6.xlarge", "T4"]
    assert all(row["fits"] for row in found["fits"])
    assert "half" in found["fits"][1]["engine_args"]


def test_sizing_errors_are_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="longer than the model's 2048"):
        run("size", model, "--context", "99999")
    with pytest.raises(AppError, match="g6.xlarge"):
        run("size", model, "--gpu", "g6.xlrge")
    with pytest.raises(AppError, match="not modelled for sglang: formulas and measured speeds are those of vLLM"):
        run("size", model, "--engine", "sglang")
    with pytest.raises(AppError, match=r"config\.json"):
        run("size", tmp_path / "nothing")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "novel"}))
    with pytest.raises(AppError, match="novel"):
        run("size", model)


def test_no_fit_is_exit_3(model: Path) -> None:
    found = run("size", model, "--gpu", "T4", "--concurrency", "100000000", code=3)
    assert "are required" in found["fits"][0]["reason"]


def test_unknown_locations_are_named(model: Path) -> None:
    with pytest.raises(AppError, match="ftp"):
        run("model", "add", model, "--name", "chat", "--bucket", "ftp://x/y")
    with pytest.raises(AppError, match="no bucket"):
        run("cache", "sync", "s3:///models/chat")
    with pytest.raises(AppError, match=r"http://\[: is not a URL"):
        run("model", "ls", "--bucket", "http://[")


def test_invalid_history_is_named(model: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    add(model, bucket)
    (bucket / "models" / "chat" / "history.json").write_text("[1]")
    with pytest.raises(AppError, match=r"history\.json: .*correct or remove the file"):
        run("model", "show", "--name", "chat", "--bucket", bucket)


def test_missing_aws_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(AppError, match=r"s3://x: no AWS credentials: .*\(nope\)"):
        run("model", "ls", "--bucket", "s3://x")


def test_unreachable_bucket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(OSError, match="s3://x/k: Could not connect"):
        open_place("s3://x").writer.exists("k")
