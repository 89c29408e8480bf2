"""Provides the Pulumi CLI: an existing one, otherwise its release verified by SHA-256, otherwise a build from its Go
module.
"""

import hashlib
import http.client
import platform
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import PULUMI_VERSION, Folders
from gpufleet.toolchain.pulumi_cli import has_required_version
from scripts.setup import go_build
from scripts.setup.running import SetupError, announce, answers, output_of

MODULE: Final = "github.com/pulumi/pulumi"
HASHES: Final = Path(__file__).with_name("pulumi_releases.txt")
RELEASES: Final = f"https://{MODULE}/releases"
PROBE_S: Final = 6.0
DOWNLOAD_LIMIT_S: Final = 60.0
"""Seconds without received data."""
MAX_FILE_BYTES: Final = 1024 * 1024 * 1024
BUILD_LIMIT_S: Final = 1500
GIB_NEEDED: Final = 5
"""Modules, build cache and binary: 3 GB measured, plus space for the linker."""
REMEDY: Final = (
    f"the Pulumi CLI {PULUMI_VERSION} is required and could not be installed. Do one of these, then run make again:\n"
    f"  - put `pulumi` {PULUMI_VERSION} on PATH (https://www.pulumi.com/docs/install/versions/); first compare its\n"
    f"    archive with pulumi-{PULUMI_VERSION}-checksums.txt of {RELEASES}/tag/v{PULUMI_VERSION}, or\n"
    "  - install Go 1.25.11 or newer (https://go.dev/dl) with a way to a Go module proxy, or\n"
    f"  - allow this machine to reach {RELEASES}"
)
_SYSTEMS: Final = {"linux": "linux", "darwin": "darwin"}
_PROCESSORS: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class Way(StrEnum):
    """How the CLI is installed."""

    RELEASE = "its release, compared with the SHA-256 in this repository"
    GO = f"a build from its Go module, since {RELEASES} cannot be reached (about 3 minutes on 2 cores, once)"


@dataclass(frozen=True, slots=True)
class Release:
    """An archive of a release, with its expected hash."""

    url: str
    sha256: str


def release_of(system: str, machine: str) -> Release | None:
    """Return the archive for a system, or None if its hash is not known."""
    name = f"pulumi-v{PULUMI_VERSION}-{_SYSTEMS.get(system)}-{_PROCESSORS.get(machine.lower())}.tar.gz"
    lines = (line.split() for line in HASHES.read_text("utf-8").splitlines() if not line.startswith("#"))
    known = {file: sha256 for sha256, file in lines}
    return Release(f"{RELEASES}/download/v{PULUMI_VERSION}/{name}", known[name]) if name in known else None


def choose_way() -> Way:
    """Decide within seconds, before any long step starts. Raises SetupError if no method is available."""
    if release_of(sys.platform, platform.machine()) is None:
        why = f"{HASHES.name} has no SHA-256 for {sys.platform} on {platform.machine()}"
    elif answers(RELEASES, PROBE_S):
        return Way.RELEASE
    else:
        why = f"{RELEASES} cannot be reached"
    go = shutil.which("go")
    if go is None:
        raise SetupError(f"{why} and there is no `go` on PATH: {REMEDY}")
    if output_of([go, "list", "-m", f"{MODULE}/pkg/v3@v{PULUMI_VERSION}"], limit_s=45) is None:
        raise SetupError(
            f"{why}, and `go list -m {MODULE}/pkg/v3@v{PULUMI_VERSION}` finds no module "
            f"(GOPROXY is {output_of([go, 'env', 'GOPROXY'])!r}): {REMEDY}"
        )
    return Way.GO


def install(way: Way, folders: Folders) -> None:
    """Install the CLI into the cache. A failed installation leaves nothing behind. Raises SetupError."""
    parent = folders.pulumi_folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(".half-*"):  # left by a killed run; this process holds the lock
        shutil.rmtree(stale, ignore_errors=True)
    half = Path(tempfile.mkdtemp(prefix=".half-", dir=parent))
    try:
        release = release_of(sys.platform, platform.machine())
        if way is Way.RELEASE and release is not None:
            download(release, half)
        else:
            _build(half, folders)
        if not has_required_version(half / "bin" / "pulumi"):
            raise SetupError(f"the installed CLI does not print `v{PULUMI_VERSION}` for `pulumi version`: {REMEDY}")
        (folders.pulumi_folder / "bin").mkdir(parents=True, exist_ok=True)
        for file in sorted((half / "bin").iterdir(), key=lambda f: f.name == "pulumi"):  # `pulumi` itself last
            file.replace(folders.pulumi_folder / "bin" / file.name)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def download(release: Release, into: Path) -> None:
    """Extract the programs of a release into `into/bin`, after verification of the hash. Raises SetupError."""
    archive = into / "release.tar.gz"
    try:
        found = _fetch(release.url, archive)
        if found != release.sha256:
            raise SetupError(
                f"{release.url} has SHA-256 {found}, but {HASHES.name} has {release.sha256}, so it was not unpacked."
                f" Check which server answers for that address here (HTTPS_PROXY). By hand: {REMEDY}"
            )
        with tarfile.open(archive) as packed:
            packed.extractall(into / "unpacked", filter="data")
    except (OSError, http.client.HTTPException, tarfile.TarError) as error:
        raise SetupError(f"{release.url} could not be fetched and unpacked: {error}\n{REMEDY}") from error
    programs = next((path.parent for path in (into / "unpacked").rglob("pulumi") if path.is_file()), None)
    if programs is None:
        raise SetupError(f"{release.url} contains no `pulumi`: {REMEDY}")
    programs.rename(into / "bin")


def _fetch(url: str, target: Path) -> str:
    """Download a file and return its SHA-256."""
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=DOWNLOAD_LIMIT_S) as answer, target.open("wb") as file:
        while piece := answer.read(1 << 20):
            size += len(piece)
            if size > MAX_FILE_BYTES:
                raise OSError(f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _build(into: Path, folders: Folders) -> None:
    environment = go_build.environment_of(folders)
    cache = Path(environment.get("GOCACHE") or Path.home() / ".cache")
    for folder in {_existing(cache), _existing(into)}:
        free = shutil.disk_usage(folder).free / 2**30
        if free < GIB_NEEDED:
            raise SetupError(
                f"{free:.1f} GiB are free for {folder}, and building Pulumi needs {GIB_NEEDED}: free some space"
            )
    (into / "bin").mkdir()
    go_build.build(
        go_build.MODULES / "pulumi",
        _build_command(into),
        doing="building the Pulumi CLI",
        log=folders.logs / "setup-pulumi.log",
        limit_s=BUILD_LIMIT_S,
        environment=environment,
    )


def _build_command(into: Path) -> list[str]:
    flags = f"-s -w -X {MODULE}/sdk/v3/go/common/version.Version=v{PULUMI_VERSION}"
    # the tags of the official release: see .goreleaser.yml of pulumi/pulumi
    tags = "osusergo,grpcnotrace"
    output = str(into / "bin" / "pulumi")
    return [
        *("go", "build", "-p", "2", "-trimpath", "-tags", tags),
        "-ldflags",
        flags,
        "-o",
        output,
        f"{MODULE}/pkg/v3/cmd/pulumi",
    ]


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def link(pulumi: Path, folders: Folders) -> None:
    """Link the CLI next to `gpufleet`, so that an activated `.venv` provides both. The CLI finds its language host
    through the link.

    Prints a message if setup did not install, and so did not verify, the CLI.
    """
    own_link = folders.python.with_name("pulumi")
    if not own_link.is_symlink() or own_link.readlink() != pulumi:
        if not pulumi.is_relative_to(folders.pulumi_folder.resolve()):
            announce(f"setup: uses {pulumi} (v{PULUMI_VERSION}); setup did not install it and has not verified it")
        own_link.unlink(missing_ok=True)
        own_link.symlink_to(pulumi)
