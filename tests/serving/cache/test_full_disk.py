"""A disk that is full before, during and after a download: a real small disk, in its own mount namespace."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT
from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.store import FolderStore

DISK_MIB = 80
"""16 MiB in addition to the 64 MiB that stay free; the model has 2.5 MB."""

MOUNT = 'mount -t tmpfs -o size="$1"m tmpfs "$2" && shift 2 && exec "$@"'
SCRIPT = """
import errno, os, sys
from datetime import UTC, datetime
from pathlib import Path
from serving.cache.disk import Cache, NoSpaceError
from serving.cache.store import FolderReader, FolderStore
from serving.cache.sync import Progress, Sync, verify
bucket, disk, digest, when = sys.argv[1:]
now, hog = datetime.now(UTC), Path(disk, "hog")

filled = []

def fill(leave):
    if filled:
        return
    filled.append(leave)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - leave
    with hog.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free)

class Filling(FolderStore):
    def connect(self):
        return Reader(Path(bucket))

class Reader(FolderReader):
    def read_range(self, key, *rest):
        if when == "first byte" and "/files/" in key:
            fill(256 * 1024)
        super().read_range(key, *rest)

class FullAtTheEnd(Cache):
    def free_space(self, needed, keep):
        evicted = super().free_space(needed, keep)
        if when == "files":
            fill(256 * 1024)
        return evicted

    def publish(self, manifest, body):
        if when == "manifest":
            fill(0)
        return super().publish(manifest, body)

cache = FullAtTheEnd(Path(disk, "models"))
cache.root.mkdir()
sync = Sync(store=Filling(Path(bucket)), cache=cache, model="models/chat")
if when == "before":
    fill(1024 * 1024)
try:
    sync.bring(digest, now)
except NoSpaceError as error:
    print("no space:", error)
except OSError as error:
    print("error:", errno.errorcode[error.errno])
else:
    print("whole", verify(cache, "chat", digest))
print("there", cache.find("chat", digest) is not None)
hog.unlink()
progress = Progress()
sync.bring(digest, now, progress)
print("then", verify(cache, "chat", digest), progress.kept > 0)
"""


def has_namespaces() -> bool:
    """Whether this user may mount a disk in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not has_namespaces(), reason="user namespaces are not allowed here")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("bucket")
    tiny_model.make(folder / "source")
    manifest = manifests.describe(folder / "source", name="chat", revision="r")
    publish.add(FolderStore(folder), folder / "source", manifest)
    shutil.rmtree(folder / "source")
    return folder, manifest.digest


@pytest.mark.parametrize(
    ("when", "expected", "kept"),
    [
        pytest.param("before", ["no space:", "there False"], False, id="before the first byte"),
        pytest.param("files", ["error: ENOSPC", "there False"], False, id="while space is reserved"),
        pytest.param(
            "first byte", ["whole []", "there True"], True, id="after space was reserved: the download succeeds"
        ),
        pytest.param("manifest", ["error: ENOSPC", "there False"], True, id="when only the manifest is missing"),
    ],
)
def test_a_disk_that_fills_up_leaves_nothing_half_there(
    bucket: tuple[Path, str], tmp_path: Path, when: str, expected: list[str], kept: bool
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = [sys.executable, "-c", SCRIPT, str(bucket[0]), str(disk), bucket[1], when]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(DISK_MIB), str(disk), *inside],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(expected[0]) and lines[1] == expected[1], done.stdout
    # with free space, the sync continues from the verified bytes
    assert lines[2] == f"then [] {kept}"
