from pathlib import Path

import pytest

from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.store import FolderStore


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bucket")
    tiny_model.make(
        folder / "source", tiny_model.TinyModelShape(layers=1, hidden=32, intermediate=32, heads=1, kv_heads=1)
    )
    manifest = manifests.describe(folder / "source", name="chat", revision="first")
    publish.add(FolderStore(folder), folder / "source", manifest)
    publish.rollout(FolderStore(folder), name="chat", digest=manifest.digest)
    return folder
