import contextlib
import hashlib
import pickle
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import MANIFEST, Cache, CacheError
from serving.cache.manifest import Manifest
from serving.cache.store import FolderReader, FolderStore, ObjectCallback, PartConsumer
from serving.cache.sync import CorruptError, Progress, Sync, SyncError, served_digest, verify

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("bucket")
    source = folder / "source"
    tiny_model.make(source)
    manifest = manifests.describe(source, name="chat", revision="first")
    publish.add(FolderStore(folder), source, manifest)
    publish.rollout(FolderStore(folder), name="chat", digest=manifest.digest)
    return folder, manifest


def sync_of(store: FolderStore, root: Path) -> Sync:
    return Sync(store=store, cache=Cache(root), model="models/chat", sleep=lambda _s: None, lock_limit_s=5)


class CorruptingStore(FolderStore):
    """Flips a bit in each of the first `corrupt_reads` reads of weights, in any thread."""

    def __init__(self, root: Path, corrupt_reads: int) -> None:
        super().__init__(root)
        self._corrupt_reads = iter(range(corrupt_reads))

    def connect(self) -> FolderReader:
        return _CorruptingReader(self)

    def next_is_corrupt(self) -> bool:
        """Count one read; advancing an iterator is atomic in the interpreter."""
        return next(self._corrupt_reads, None) is not None


class _CorruptingReader(FolderReader):
    def __init__(self, store: CorruptingStore) -> None:
        super().__init__(store._root)
        self._store = store

    def read_range(
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: PartConsumer,
        on_object: ObjectCallback | None = None,
    ) -> None:
        corrupt = key.endswith(".safetensors") and self._store.next_is_corrupt()

        def damaged(piece: memoryview) -> None:
            take(memoryview(bytes([piece[0] ^ 1]) + bytes(piece[1:])) if corrupt else piece)

        super().read_range(key, start, length, version, damaged, on_object)


def test_a_revision_is_complete_and_a_second_sync_reads_nothing(
    bucket: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, manifest = bucket
    store = FolderStore(folder)
    sync = sync_of(store, tmp_path)
    progress = Progress()
    assert served_digest(store, "models/chat") == manifest.digest
    found = sync.bring(manifest.digest, NOW, progress)
    assert found == tmp_path / f"chat@{manifest.digest}"
    assert progress.fetched == manifest.size == progress.total
    for file in manifest.files:
        assert hashlib.sha256((found / file.path).read_bytes()).hexdigest() == file.sha256
    assert verify(sync.cache, "chat", manifest.digest) == []
    again = Progress()
    assert sync.bring(manifest.digest, NOW, again) == found
    assert (again.fetched, again.kept) == (0, manifest.size)


def test_correct_chunks_staged_before_a_crash_are_kept(bucket: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bucket
    sync = sync_of(FolderStore(folder), tmp_path)
    staged = sync.cache.staging_of(manifest.digest)
    staged.mkdir(parents=True)
    base = folder / "models/chat" / manifest.digest / "files"
    weights = [file for file in manifest.files if file.path.endswith(".safetensors")]
    shutil.copy(base / weights[0].path, staged / weights[0].path)
    damaged = bytearray((base / weights[1].path).read_bytes())
    damaged[-1] ^= 1
    (staged / weights[1].path).write_bytes(damaged)
    progress = Progress()
    sync.bring(manifest.digest, NOW, progress)
    assert progress.kept == weights[0].size
    assert progress.fetched == manifest.size - weights[0].size
    assert verify(sync.cache, "chat", manifest.digest) == []


def test_a_flipped_bit_on_the_way_is_read_again(bucket: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bucket
    progress = Progress()
    sync_of(CorruptingStore(folder, corrupt_reads=2), tmp_path).bring(manifest.digest, NOW, progress)
    assert progress.retries == 2
    assert verify(Cache(tmp_path), "chat", manifest.digest) == []


def test_a_store_that_always_sends_corrupt_bytes_is_refused_and_nothing_is_stored(
    bucket: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, manifest = bucket
    sync = sync_of(CorruptingStore(folder, corrupt_reads=10_000), tmp_path)
    with pytest.raises(CorruptError, match="do not match the manifest"):
        sync.bring(manifest.digest, NOW)
    assert sync.cache.find("chat", manifest.digest) is None
    assert not list(tmp_path.glob("chat@*"))


def _weights(folder: Path, manifest: Manifest) -> list[Path]:
    base = folder / "models/chat" / manifest.digest / "files"
    return sorted(base.glob("*.safetensors"))


def truncated(shards: list[Path]) -> None:
    shards[0].write_bytes(shards[0].read_bytes()[:-1])


def zero_length(shards: list[Path]) -> None:
    shards[0].write_bytes(b"")


def swapped(shards: list[Path]) -> None:
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    shards[0].write_bytes(second)
    shards[1].write_bytes(first)


def swapped_inside(shards: list[Path]) -> None:
    """Swap the halves of one file: the size stays correct."""
    body = shards[0].read_bytes()
    shards[0].write_bytes(body[len(body) // 2 :] + body[: len(body) // 2])


def bit_flipped(shards: list[Path]) -> None:
    body = bytearray(shards[0].read_bytes())
    body[len(body) // 2] ^= 1
    shards[0].write_bytes(body)


def pickled(shards: list[Path]) -> None:
    """Write a pickle with a safe name and the correct size."""
    body = pickle.dumps({"weights": [1]})
    shards[0].write_bytes(body.ljust(shards[0].stat().st_size, b"\0"))


@pytest.mark.parametrize("harm", [truncated, zero_length, swapped, swapped_inside, bit_flipped, pickled])
def test_a_bucket_whose_bytes_are_not_the_manifests_is_refused_and_named(
    bucket: tuple[Path, Manifest], tmp_path: Path, harm: Callable[[list[Path]], None]
) -> None:
    folder, manifest = bucket
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shards = _weights(copy, manifest)
    harm(shards)
    sync = sync_of(FolderStore(copy), tmp_path / "cache")
    with pytest.raises(CorruptError, match=r"model-0000[12]-of-00002\.safetensors"):
        sync.bring(manifest.digest, NOW)
    assert sync.cache.find("chat", manifest.digest) is None
    assert sync.cache.entries() == []
    # after a repair of the bucket, the download succeeds
    for shard, right in zip(shards, _weights(folder, manifest), strict=True):
        shutil.copy(right, shard)
    sync.bring(manifest.digest, NOW)
    assert verify(sync.cache, "chat", manifest.digest) == []


def test_a_link_in_the_staging_folder_leads_no_byte_out_of_the_cache(
    bucket: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, manifest = bucket
    sync = sync_of(FolderStore(folder), tmp_path / "cache")
    outside = tmp_path / "outside.json"
    outside.write_text("mine")
    staged = sync.cache.staging_of(manifest.digest)
    staged.mkdir(parents=True)
    (staged / "config.json").symlink_to(outside)
    with pytest.raises(CacheError, match="not a regular file"):
        sync.bring(manifest.digest, NOW)
    assert outside.read_text() == "mine"


def test_a_link_in_place_of_a_file_is_reported_by_verify(bucket: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bucket
    sync = sync_of(FolderStore(folder), tmp_path / "cache")
    found = sync.bring(manifest.digest, NOW)
    (found / "config.json").rename(tmp_path / "config.json")
    (found / "config.json").symlink_to(tmp_path / "config.json")
    assert any(line.startswith("config.json") for line in verify(sync.cache, "chat", manifest.digest))


@pytest.mark.parametrize("harm", ["cut", "removed", "manifest changed", "manifest removed"])
def test_a_damaged_entry_is_not_found_and_is_repaired(
    bucket: tuple[Path, Manifest], tmp_path: Path, harm: str
) -> None:
    folder, manifest = bucket
    sync = sync_of(FolderStore(folder), tmp_path)
    found = sync.bring(manifest.digest, NOW)
    config = found / "config.json"
    match harm:
        case "cut":
            config.write_bytes(config.read_bytes()[:-1])
        case "removed":
            config.unlink()
        case "manifest changed":
            (found / MANIFEST).write_bytes((found / MANIFEST).read_bytes() + b" ")
        case _:
            (found / MANIFEST).unlink()
    assert sync.cache.find("chat", manifest.digest) is None
    assert sync.bring(manifest.digest, NOW) == found
    assert verify(sync.cache, "chat", manifest.digest) == []


def test_a_leased_revision_is_not_evicted(bucket: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bucket
    sync = sync_of(FolderStore(folder), tmp_path)
    sync.bring(manifest.digest, NOW)
    with sync.cache.lease(manifest.digest):
        (entry,) = sync.cache.entries()
        assert entry.leased
        assert not sync.cache.evict(entry)
    (entry,) = sync.cache.entries()
    assert sync.cache.evict(entry)
    assert sync.cache.entries() == []


def test_the_second_of_two_syncs_waits_for_the_lock_and_reports_it(
    bucket: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, manifest = bucket
    sync = sync_of(FolderStore(folder), tmp_path)
    sync.lock_limit_s = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(Cache(tmp_path).lock(manifest.digest, 1))
        with pytest.raises(TimeoutError, match="another process"):
            sync.bring(manifest.digest, NOW)


def test_a_missing_object_ends_the_sync(bucket: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bucket
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "models/chat" / manifest.digest / "files/config.json").unlink()
    with pytest.raises((FileNotFoundError, SyncError)):
        sync_of(FolderStore(copy), tmp_path / "cache").bring(manifest.digest, NOW)
