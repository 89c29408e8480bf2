"""The Pulumi CLI: what is there already, else the official installer, else built from its Go module."""

import os
import shutil
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Final

from localcloud.control.folders import PULUMI_VERSION, Folders
from localcloud.control.pulumi_cli import is_right
from scripts.setup.running import SetupError, answers, output_of, run, say

MODULE: Final = "github.com/pulumi/pulumi"
INSTALLER: Final = "https://get.pulumi.com/install.sh"
PROBE_S: Final = 6.0
INSTALL_LIMIT_S: Final = 180
BUILD_LIMIT_S: Final = 1500
GIB_NEEDED: Final = 5
"""Modules, build cache and the binary: 3 GB measured, and room for the link."""
REMEDY: Final = (
    f"the Pulumi CLI {PULUMI_VERSION} is needed and cannot be had here. Do one of these, then run make again:\n"
    f"  - put `pulumi` {PULUMI_VERSION} on PATH (https://www.pulumi.com/docs/install/versions/), or\n"
    "  - install Go 1.25 or newer (https://go.dev/dl) with a way to a Go module proxy, or\n"
    "  - allow this machine to reach https://get.pulumi.com"
)


class Way(StrEnum):
    """How the CLI will come."""

    INSTALLER = "its official installer"
    GO = f"a build from its Go module, since {INSTALLER} cannot be reached (about 3 minutes on 2 cores, once)"


def choose_way() -> Way:
    """Decide within seconds, before anything long is begun. Raises SetupError when there is no way."""
    if answers(INSTALLER, PROBE_S):
        return Way.INSTALLER
    go = shutil.which("go")
    if go is None:
        raise SetupError(f"{INSTALLER} cannot be reached and there is no `go` on PATH: {REMEDY}")
    if output_of([go, "list", "-m", f"{MODULE}/pkg/v3@v{PULUMI_VERSION}"], limit_s=45) is None:
        raise SetupError(
            f"{INSTALLER} cannot be reached, and `go list -m {MODULE}/pkg/v3@v{PULUMI_VERSION}` finds no module "
            f"(GOPROXY is {output_of([go, 'env', 'GOPROXY'])!r}): {REMEDY}"
        )
    return Way.GO


def install(way: Way, folders: Folders) -> None:
    """Bring the CLI into the cache; whole or not at all. Raises SetupError."""
    parent = folders.pulumi_folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(".half-*"):  # of a run that was killed; we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    half = Path(tempfile.mkdtemp(prefix=".half-", dir=parent))
    try:
        if way is Way.INSTALLER:
            try:
                _run_installer(half, folders)
            except SetupError as trouble:
                if shutil.which("go") is None:
                    raise SetupError(f"{trouble}\n{REMEDY}") from trouble
                say(f"      the installer failed, so Go builds it: {str(trouble).splitlines()[0]}")
                _build(half, folders)
        else:
            _build(half, folders)
        if not is_right(half / "bin" / "pulumi"):
            raise SetupError(f"what was installed does not say `v{PULUMI_VERSION}` to `pulumi version`: {REMEDY}")
        (folders.pulumi_folder / "bin").mkdir(parents=True, exist_ok=True)
        for file in sorted((half / "bin").iterdir(), key=lambda f: f.name == "pulumi"):  # `pulumi` itself last
            file.replace(folders.pulumi_folder / "bin" / file.name)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _run_installer(into: Path, folders: Folders) -> None:
    program = (
        "import sys; from pulumi.automation import PulumiCommand; from semver import VersionInfo; "
        "PulumiCommand.install(root=sys.argv[1], version=VersionInfo.parse(sys.argv[2]))"
    )
    run(
        [str(folders.python), "-c", program, str(into), PULUMI_VERSION],
        doing="running Pulumi's installer",
        log=folders.logs / "setup-pulumi.log",
        limit_s=INSTALL_LIMIT_S,
    )


def _build(into: Path, folders: Folders) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    if folders.cache.is_relative_to(folders.local):  # home cannot be written, so neither can Go's own caches
        environment |= {"GOPATH": str(folders.cache / "go"), "GOCACHE": str(folders.cache / "go-build")}
    cache = Path(environment.get("GOCACHE") or Path.home() / ".cache")
    for folder in {_existing(cache), _existing(into)}:
        free = shutil.disk_usage(folder).free / 2**30
        if free < GIB_NEEDED:
            raise SetupError(
                f"{free:.1f} GiB are free for {folder}, and building Pulumi needs {GIB_NEEDED}: make room"
            )
    log = folders.logs / "setup-pulumi.log"
    work = into / "work"
    (into / "bin").mkdir()
    work.mkdir()
    module = (
        f"module gpu-fleet.invalid/tools\n\ngo 1.25\n\ntool {MODULE}/pkg/v3/cmd/pulumi\n\n"
        f"require (\n\t{MODULE}/pkg/v3 v{PULUMI_VERSION}\n\t{MODULE}/sdk/v3 v{PULUMI_VERSION}\n)\n"
    )
    (work / "go.mod").write_text(module)
    for command, doing, limit in (
        (["go", "mod", "download"], "downloading Pulumi's Go modules", 600),
        (_build_command(into), "building the Pulumi CLI", BUILD_LIMIT_S),
    ):
        run(command, doing=doing, log=log, limit_s=limit, environment=environment, cwd=work)
    shutil.rmtree(work)


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
    """Put it beside `gpufleet`: whoever activated `.venv` has both. It finds its language host behind the link."""
    beside = folders.python.with_name("pulumi")
    if not beside.is_symlink() or beside.readlink() != pulumi:
        beside.unlink(missing_ok=True)
        beside.symlink_to(pulumi)
