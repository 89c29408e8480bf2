"""Builds a Go command from a module with a pinned module graph. Each module is compared with its hash in go.sum."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from scripts.setup.running import run

MODULES: Final = Path(__file__).with_name("modules")
"""One folder per command with go.mod and go.sum. `go get -tool COMMAND@vVERSION && go mod tidy` updates them
there.
"""
DOWNLOAD_LIMIT_S: Final = 600


def environment_of(folders: Folders) -> dict[str, str]:
    """Return the caller's environment (it may set a proxy), without variables that weaken the verification."""
    environment = {name: value for name, value in os.environ.items() if name not in ("GOINSECURE", "GONOSUMCHECK")}
    environment |= {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    if folders.cache.is_relative_to(folders.local):  # the home directory is read-only, so Go's own caches are, too
        environment |= {"GOPATH": str(folders.cache / "go"), "GOCACHE": str(folders.cache / "go-build")}
    return environment


def build(
    module: Path,
    command: Sequence[str],
    *,
    doing: str,
    log: Path,
    limit_s: float,
    environment: Mapping[str, str],
) -> None:
    """Download the modules of `module`, compare them and the cache with go.sum, and run `go build` there.

    Raises SetupError, also if a module has another hash.
    """
    with tempfile.TemporaryDirectory(prefix="gpufleet-go-") as name:
        work = Path(name)
        for file in ("go.mod", "go.sum"):
            shutil.copyfile(module / file, work / file)
        steps = (
            (["go", "mod", "download"], f"downloading the Go modules for {doing}", DOWNLOAD_LIMIT_S),
            (["go", "mod", "verify"], f"verifying the Go modules for {doing}", DOWNLOAD_LIMIT_S),
            (command, doing, limit_s),
        )
        for arguments, what, limit in steps:
            run(arguments, doing=what, log=log, limit_s=limit, environment=environment, cwd=work)
