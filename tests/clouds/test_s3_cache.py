"""Models from S3 into the cache, on good days and bad ones, with the reader that instances use."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clouds.aws.signature import Credentials
from clouds.aws.signed import S3Store, Session
from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache
from serving.cache.manifest import Manifest
from serving.cache.store import FolderStore
from serving.cache.sync import CorruptError, Progress, Sync, SyncError, served_digest, verify
from tests.clouds.object_store import Day, ObjectStore, serving

NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEYS = Credentials(access_key="a", secret_key="b")  # noqa: S106 - the store does not look


def s3(url: str) -> S3Store:
    return S3Store(Session(region="us-east-1", credentials=lambda: KEYS, endpoint=url), "bucket")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("objects")
    tiny_model.make(folder / "source", tiny_model.Shape(shards=3))
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
    # spares the two small objects: served.json was the first, the manifest is the second
    store.mood.day, store.mood.spared, store.mood.times = day, 2, 3
    sync.bring(digest, NOW, progress)
    assert verify(sync.cache, "chat", digest) == []
    assert progress.fetched == source[1].size
    assert progress.retries == (3 if day in BAD_DAYS else 0)


@pytest.mark.parametrize("day", BAD_DAYS)
def test_a_bad_day_that_stays_ends_the_sync_and_leaves_nothing_to_serve(
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


def test_an_object_that_changes_while_it_is_read_ends_the_sync(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path
) -> None:
    sync, digest = sync_of(store, tmp_path), source[1].digest
    store.mood.delay_s = 0.2
    key = f"models/chat/{digest}/files/config.json"
    change = threading.Timer(0.3, lambda: store.mood.versions.update({key: '"another"'}))
    sync.workers = 1
    change.start()
    with pytest.raises(OSError, match="changed while it was read"):
        sync.bring(digest, NOW)
    change.join()
    assert sync.cache.find("chat", digest) is None


def test_a_store_that_refuses_is_said_at_once(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path
) -> None:
    store.mood.day, store.mood.times = Day.REFUSES, 10**6
    with pytest.raises(PermissionError, match="refuses"):
        sync_of(store, tmp_path).bring(source[1].digest, NOW)


def test_several_engines_on_one_machine_wait_for_one_download(
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
import sys
from datetime import UTC, datetime
from pathlib import Path
from tests.clouds.test_s3_cache import s3
from serving.cache.disk import Cache
from serving.cache.sync import Sync
url, root, digest = sys.argv[1:]
Sync(store=s3(url), cache=Cache(Path(root)), model="models/chat", workers=2).bring(digest, datetime.now(UTC))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_goes_on_and_no_wrong_byte_is_kept(
    store: ObjectStore, source: tuple[Path, Manifest], tmp_path: Path, seed: int
) -> None:
    dice, digest, cache = random.Random(seed), source[1].digest, Cache(tmp_path)
    store.mood.delay_s = 0.05
    command = [sys.executable, "-c", SYNC_ONCE, store.url, str(tmp_path), digest]
    kills = 0
    for _ in range(40):
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
        try:
            process.wait(timeout=dice.uniform(0.3, 1.6))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        found = cache.find("chat", digest)
        if found is not None:
            break
        staged = cache.staging_of(digest)
        if dice.random() < 0.5 and staged.is_dir():
            _spoil_one_byte(dice, staged)
    assert kills > 0
    assert verify(cache, "chat", digest) == []


def _spoil_one_byte(dice: random.Random, folder: Path) -> None:
    """What a disk does that lost power: a byte of a staged file is wrong."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    if files:
        path = dice.choice(files)
        with path.open("r+b") as file:
            file.seek(dice.randrange(path.stat().st_size))
            file.write(b"\xff")
