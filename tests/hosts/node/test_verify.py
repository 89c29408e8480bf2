"""`python3 gpufleet-node.pyz verify`: an operator checks the disk of an instance."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hosts.node.__main__ import main
from serving.cache.disk import Cache
from serving.cache.store import FolderStore
from serving.cache.sync import Progress, Sync, served_digest
from tests.fixtures.node.settings import written


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of an instance with settings and without a model."""
    file = tmp_path / "etc/gpu-fleet/instance.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(written()))
    monkeypatch.setenv("GPUFLEET_ROOT", str(tmp_path))
    return tmp_path


def test_a_changed_bit_of_a_model_is_detected(root: Path, bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = FolderStore(bucket)
    digest = served_digest(store, "models/chat")
    place = Sync(store=store, cache=Cache(root / "mnt/nvme/models"), model="models/chat").bring(
        digest, datetime.now(UTC), Progress()
    )
    assert (main(["verify"]), capsys.readouterr().out) == (0, f"chat {digest[:12]}: correct\n")
    weights = next(place.rglob("*.safetensors"))
    body = bytearray(weights.read_bytes())
    body[-1] ^= 1
    weights.chmod(0o600)
    weights.write_bytes(body)
    assert main(["verify"]) == 3
    assert f"chat {digest[:12]}: {weights.name}: bytes 0 to " in capsys.readouterr().out


def test_a_disk_without_a_model_is_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 1
    assert "contains no complete model" in capsys.readouterr().err
