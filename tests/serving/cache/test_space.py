"""Disk space for models: eviction order, protected revisions, and errors before the download."""

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache, NoSpaceError
from serving.cache.manifest import Manifest
from serving.cache.store import FolderStore
from serving.cache.sync import Progress, Sync

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SPARE = 64 * 1024 * 1024


class SmallDisk(Cache):
    """A cache on a disk of `size` bytes, in addition to the space that always stays free."""

    def __init__(self, root: Path, size: int) -> None:
        super().__init__(root)
        self.size = size

    def _free(self) -> int:
        used = sum(path.stat().st_size for path in self.root.rglob("*.safetensors"))
        return SPARE + self.size - used


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Manifest]]:
    """Create three revisions of the same size."""
    folder = tmp_path_factory.mktemp("bucket")
    made: list[Manifest] = []
    for seed in range(3):
        tiny_model.make(folder / f"source {seed}", tiny_model.TinyModelShape(seed=seed))
        made.append(manifests.describe(folder / f"source {seed}", name="chat", revision=str(seed)))
        publish.add(FolderStore(folder), folder / f"source {seed}", made[-1])
    return folder, made


def bring(folder: Path, cache: Cache, manifest: Manifest, minutes: int) -> Progress:
    progress = Progress()
    sync = Sync(store=FolderStore(folder), cache=cache, model="models/chat")
    sync.bring(manifest.digest, NOW + timedelta(minutes=minutes), progress)
    return progress


def test_the_least_recently_used_revision_is_evicted_first(
    models: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    folder, (first, second, third) = models
    cache = SmallDisk(tmp_path, int(first.size * 2.5))
    bring(folder, cache, first, 0)
    bring(folder, cache, second, 1)
    # used again: now the second revision is the least recently used
    assert bring(folder, cache, first, 2).fetched == 0
    bring(folder, cache, third, 3)
    assert [entry.digest for entry in cache.entries()] == [first.digest, third.digest]


def test_a_served_revision_is_kept_even_when_it_is_the_oldest(
    models: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    folder, (first, second, third) = models
    cache = SmallDisk(tmp_path, int(first.size * 2.5))
    bring(folder, cache, first, 0)
    with cache.lease(first.digest):
        bring(folder, cache, second, 1)
        bring(folder, cache, third, 2)
        assert {entry.digest for entry in cache.entries()} == {first.digest, third.digest}


def test_too_small_a_disk_is_an_error_before_a_byte_is_fetched_and_nothing_is_evicted(
    models: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    folder, (first, second, _) = models
    cache = SmallDisk(tmp_path, int(first.size * 1.5))
    bring(folder, cache, first, 0)
    progress = Progress()
    with cache.lease(first.digest), pytest.raises(NoSpaceError, match="more local NVMe"):
        Sync(store=FolderStore(folder), cache=cache, model="models/chat").bring(second.digest, NOW, progress)
    assert progress.fetched == 0
    assert cache.find("chat", first.digest) is not None
    assert cache.find("chat", second.digest) is None


@pytest.mark.parametrize("is_in_progress", [False, True], ids=["its sync was killed", "its sync still runs"])
def test_leftovers_of_a_killed_sync_are_removed_first(
    models: tuple[Path, list[Manifest]], tmp_path: Path, is_in_progress: bool
) -> None:
    folder, (first, second, third) = models
    cache = SmallDisk(tmp_path, int(first.size * 2.5))
    bring(folder, cache, first, 0)
    left = cache.staging_of(second.digest) / "files/model.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(first.size))
    with ExitStack() as other:
        if is_in_progress:
            other.enter_context(cache.lock(second.digest, 1))
        bring(folder, cache, third, 1)
    there = {entry.digest for entry in cache.entries()}
    assert (left.exists(), there) == (
        (True, {third.digest}) if is_in_progress else (False, {first.digest, third.digest})
    )
