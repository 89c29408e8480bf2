"""Copies models from S3 to the cache with the instances' reader, from a store with and without failures."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpufleet.clouds.aws.signature import Credentials
from gpufleet.clouds.aws.signed import S3Reader, S3Store, Session
from gpufleet.clouds.wire import Server
from gpufleet.toolchain.folders import ROOT
from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache
from serving.cache.manifest import CHUNK, Manifest
from serving.cache.store import FolderStore, ObjectCallback
from serving.cache.sync import CorruptError, Progress, Sync, SyncError, served_digest, verify
from tests.fixtures.clouds.object_store import Day, ObjectStore, Trap, serving

NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEYS = Credentials(access_key="a", secret_key="b")  # noqa: S106 - the store does not check it


def s3(url: str) -> S3Store:
    return S3Store(Session(region="us-east-1", credentials=lambda: KEYS, endpoint=url), "bucket")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("objects")
    tiny_model.make(folder / "source", tiny_model.TinyModelShape(shards=3))
    manifest = manifests.describe(folder / "source", name="chat", revision="r")
    publish.add(FolderStore(folder), folder / "source", manifest)
    publish.rollout(FolderStore(folder), name="chat", digest=manifest.digest)
    return folder, manifest


@pytest.fixture
def store(source: tuple[Path, Manifest]) -> Iterator[ObjectStore]:
    with serving(source[0]) as up:
        yield up


def sync_of(store: ObjectStore, root: Path) -> Sync:
    return Sync(store=s3(store.url), cache=Cache(root), model="models/chat", sleep=lambda _s: None, lock_limit_s=30)


BAD_DAYS = [Day.THROTTLES, Day.RESETS, Day.ENDS_EARLY, Day.FLIPS_BITS]


@pytest.mark.parametrize("day", [Day.GOOD, Day.IGNORES_RANGES, *BAD_DAYS])
def test_a_bad_day_that_passes_costs_only_time(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path, day: Day
) -> None:
    sync, progress, digest = sync_of(store, tmp_path), Progress(), source[1].digest
    assert served_digest(sync.store, "models/chat") == digest
    # no failures for the first two responses: served.json and the manifest
    store.mood.day, store.mood.spared, store.mood.times = day, 2, 3
    sync.bring(digest, NOW, progress)
    assert verify(sync.cache, "chat", digest) == []
    assert progress.fetched == source[1].size
    assert progress.retries == (3 if day in BAD_DAYS else 0)


@pytest.mark.parametrize("day", BAD_DAYS)
def test_permanent_failures_end_the_sync_without_a_cache_entry(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path, day: Day
) -> None:
    sync, digest = sync_of(store, tmp_path), source[1].digest
    store.mood.day, store.mood.spared, store.mood.times = day, 1, 10**6
    with pytest.raises(CorruptError if day is Day.FLIPS_BITS else SyncError):
        sync.bring(digest, NOW)
    assert sync.cache.find("chat", digest) is None
    store.mood.times = 0
    sync.bring(digest, NOW)
    assert verify(sync.cache, "chat", digest) == []


class ChangingStore(S3Store):
    """A store that changes the version of a file after sending its first chunk."""

    def __init__(self, store: ObjectStore, *, conditions: bool) -> None:
        self.session = Session(region="us-east-1", credentials=lambda: KEYS, endpoint=store.url)
        super().__init__(self.session, "bucket")
        self.mood, self.conditions = store.mood, conditions

    def connect(self) -> S3Reader:
        return _ChangingReader(self)


class _ChangingReader(S3Reader):
    def __init__(self, store: ChangingStore) -> None:
        super().__init__(store.session, "bucket", Server(store.session.bucket_url("bucket")))
        self._store = store

    def read_range(
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: Callable[[memoryview], None],
        on_object: ObjectCallback | None = None,
    ) -> None:
        super().read_range(key, start, length, version if self._store.conditions else None, take, on_object)
        if "/files/" in key:
            self._store.mood.versions[key] = '"another"'


@pytest.fixture(scope="module")
def two_chunks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A model with a file that is slightly larger than one chunk."""
    folder = tmp_path_factory.mktemp("two chunks")
    tiny_model.make(folder / "source")
    with (folder / "source/more.txt").open("wb") as file:
        file.truncate(CHUNK + 100)
    manifest = manifests.describe(folder / "source", name="chat", revision="r")
    publish.add(FolderStore(folder), folder / "source", manifest)
    return folder, manifest


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param(True, id="the store refuses the other one"),
        pytest.param(False, id="its answer states another one"),
    ],
)
def test_an_object_that_changes_between_two_chunks_ends_the_sync(
    two_chunks: tuple[Path, Manifest], tmp_path: Path, conditions: bool
) -> None:
    folder, manifest = two_chunks
    with serving(folder) as store:
        sync = sync_of(store, tmp_path)
        sync.store, sync.workers = ChangingStore(store, conditions=conditions), 1
        with pytest.raises(OSError, match="changed while it was read"):
            sync.bring(manifest.digest, NOW)
        assert sync.cache.find("chat", manifest.digest) is None
        store.mood.versions.clear()
        sync_of(store, tmp_path).bring(manifest.digest, NOW)
    assert verify(sync.cache, "chat", manifest.digest) == []


def test_progress_reports_the_share_of_each_file(two_chunks: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = two_chunks
    progress, observed = Progress(), list[dict[str, float]]()
    with serving(folder) as store:
        sync = sync_of(store, tmp_path)
        sync.workers, sync.raise_if_stopped = 1, lambda: observed.append(progress.under_way())
        sync.bring(manifest.digest, NOW, progress)
    assert progress.here == {file.path: file.size for file in manifest.files}
    partial = [shares for shares in observed if shares]
    assert partial
    assert all(shares == {"more.txt": pytest.approx(CHUNK / (CHUNK + 100))} for shares in partial)
    assert progress.under_way() == {}


def test_each_file_needs_one_request(store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path) -> None:
    sync_of(store, tmp_path).bring(source[1].digest, NOW)
    # one GET per file and one for the manifest; only the manifest needs a HEAD, because its size is unknown
    assert (store.mood.heads, store.mood.gets) == (1, 1 + len(source[1].files))


@pytest.mark.parametrize("size", [0, 1, -1], ids=["empty", "one byte", "one byte less"])
def test_a_wrong_object_size_is_an_error_without_retries(
    source: tuple[Path, Manifest], tmp_path: Path, size: int
) -> None:
    copy, manifest = tmp_path / "copy", source[1]
    shutil.copytree(source[0], copy)
    harmed = copy / "models/chat" / manifest.digest / "files/config.json"
    harmed.write_bytes(harmed.read_bytes()[:size])
    with serving(copy) as store:
        sync = sync_of(store, tmp_path / "cache")
        progress = Progress()
        with pytest.raises(CorruptError, match=r"config\.json: has \d+ bytes in the store"):
            sync.bring(manifest.digest, NOW, progress)
    assert progress.retries == 0
    assert sync.cache.entries() == []


def test_an_object_longer_than_in_the_manifest_is_an_error(source: tuple[Path, Manifest], tmp_path: Path) -> None:
    copy, manifest = tmp_path / "copy", source[1]
    shutil.copytree(source[0], copy)
    harmed = copy / "models/chat" / manifest.digest / "files/config.json"
    harmed.write_bytes(harmed.read_bytes() + b" ")
    with serving(copy) as store, pytest.raises(CorruptError, match="in the store"):
        sync_of(store, tmp_path / "cache").bring(manifest.digest, NOW)


def test_a_refusal_of_the_store_is_reported_at_once(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path
) -> None:
    store.mood.day, store.mood.times = Day.REFUSES, 10**6
    with pytest.raises(PermissionError, match="refuses"):
        sync_of(store, tmp_path).bring(source[1].digest, NOW)


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1), timedelta(minutes=10)])
def test_a_machine_whose_clock_is_off_signs_again_with_the_stores_time(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path, off: timedelta
) -> None:
    store.mood.looks_at_clocks = True
    session = Session(
        region="us-east-1", credentials=lambda: KEYS, endpoint=store.url, now=lambda: datetime.now(UTC) + off
    )
    sync = Sync(store=S3Store(session, "bucket"), cache=Cache(tmp_path), model="models/chat", lock_limit_s=30)
    progress = Progress()
    sync.bring(source[1].digest, NOW, progress)
    assert verify(sync.cache, "chat", source[1].digest) == []
    assert progress.retries == 0
    expected = -off if abs(off) > timedelta(minutes=15) else timedelta()
    assert abs(session.skew.ahead - expected) < timedelta(seconds=30)


def test_a_refusal_without_clock_difference_is_not_retried(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path
) -> None:
    store.mood.day, store.mood.times = Day.REFUSES, 10**6
    key = f"models/chat/{source[1].digest}/manifest.json"
    reader = s3(store.url).connect()
    with pytest.raises(PermissionError):
        reader.read_range(key, 0, 10, None, lambda _piece: None)
    reader.close()
    assert store.mood.gets == 1


def test_several_engines_on_one_machine_share_one_download(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path
) -> None:
    progresses = [Progress() for _ in range(4)]

    def bring(progress: Progress) -> None:
        sync_of(store, tmp_path).bring(source[1].digest, NOW, progress)

    threads = [threading.Thread(target=bring, args=(progress,)) for progress in progresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(progress.fetched for progress in progresses) == [0, 0, 0, source[1].size]


SYNC_ONCE = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from gpufleet.clouds.aws.signature import Credentials
from gpufleet.clouds.aws.signed import S3Store, Session
from serving.cache.disk import Cache
from serving.cache.sync import Sync
url, root, digest, last = *sys.argv[1:4], int(sys.argv[4])
steps = 0
def count(event, args):
    global steps
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.truncate", "os.utime") and root in str(args[0]):
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
session = Session(region="us-east-1", credentials=lambda: Credentials(access_key="a", secret_key="b"), endpoint=url)
sync = Sync(store=S3Store(session, "bucket"), cache=Cache(Path(root)), model="models/chat", workers=2)
sync.bring(digest, datetime.now(UTC))
print(steps)
"""


def sync_process(store: ObjectStore, root: Path, digest: str, *, last_step: int = 0) -> subprocess.Popen[str]:
    """Start a sync in a new process. It kills itself before file operation number `last_step`; 0: never."""
    return subprocess.Popen(
        [sys.executable, "-c", SYNC_ONCE, store.url, str(root), digest, str(last_step)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _killed_at_byte(store: ObjectStore, root: Path, digest: str, byte: int) -> bool:
    """Run a sync and kill it before this byte is sent. Returns False if the sync finished with fewer bytes."""
    started, processes = threading.Event(), list[subprocess.Popen[str]]()

    def end() -> None:
        started.wait(60)
        processes[0].kill()

    store.mood.trap = Trap(after=byte, then=end)
    processes.append(sync_process(store, root, digest))
    started.set()
    processes[0].communicate(timeout=120)
    assert processes[0].returncode == (-signal.SIGKILL if store.mood.trap.sprung else 0)
    return store.mood.trap.sprung


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_sync_killed_at_any_byte_resumes_without_wrong_bytes(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path, seed: int
) -> None:
    dice, (_, manifest), cache = random.Random(seed), source, Cache(tmp_path)
    # the first run reads everything and is always killed; later runs have less to read
    for kill in range(5):
        killed = _killed_at_byte(store, tmp_path, manifest.digest, dice.randrange(1, manifest.size))
        assert killed or kill > 0
        if not killed:
            break
        assert cache.find("chat", manifest.digest) is None
        if dice.random() < 0.5:
            _spoil_one_byte(dice, cache.staging_of(manifest.digest))
    store.mood.trap = None
    process = sync_process(store, tmp_path, manifest.digest)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert verify(cache, "chat", manifest.digest) == []


@pytest.mark.slow
def test_killed_before_any_step_on_the_disk_it_is_whole_or_not_there(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path
) -> None:
    digest = source[1].digest
    counted = sync_process(store, tmp_path / "counted", digest)
    steps = int(counted.communicate(timeout=120)[0])
    # the first steps, some in the middle, and all of the last ones, which move staged files to their final place
    chosen = sorted({1, 2, 3, steps // 3, steps // 2, *range(steps - 9, steps + 1)})
    for last in chosen:
        cache = Cache(tmp_path / f"until {last}")
        process = sync_process(store, cache.root, digest, last_step=last)
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
        if cache.find("chat", digest) is not None:
            assert verify(cache, "chat", digest) == []
        sync_of(store, cache.root).bring(digest, NOW)
        assert verify(cache, "chat", digest) == []


def _spoil_one_byte(dice: random.Random, folder: Path) -> None:
    """Corrupt one byte of a staged file, as a power loss may do."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    if files:
        path = dice.choice(files)
        with path.open("r+b") as file:
            file.seek(dice.randrange(path.stat().st_size))
            file.write(b"\xff")
