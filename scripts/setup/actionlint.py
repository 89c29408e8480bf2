"""Installs actionlint, which checks the CI workflows. It is built from its Go module, and each module is verified by
hash.
"""

import shutil
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from scripts.setup import go_build
from scripts.setup.running import SetupError

VERSION: Final = "1.7.12"
MODULE: Final = go_build.MODULES / "actionlint"
PACKAGE: Final = "github.com/rhysd/actionlint/cmd/actionlint"
LIMIT_S: Final = 300


def place(folders: Folders) -> Path:
    """Return the path of the binary."""
    return folders.cache / f"actionlint-{VERSION}" / "actionlint"


def install(folders: Folders) -> None:
    """Build it into the cache. Raises SetupError."""
    if shutil.which("go") is None:
        raise SetupError("there is no `go` on PATH, which builds actionlint (https://go.dev/dl)")
    final = place(folders)
    final.parent.mkdir(parents=True, exist_ok=True)
    half = final.with_suffix(".half")
    go_build.build(
        MODULE,
        ["go", "build", "-trimpath", "-o", str(half), PACKAGE],
        doing="building actionlint",
        log=folders.logs / "setup-actionlint.log",
        limit_s=LIMIT_S,
        environment=go_build.environment_of(folders),
    )
    half.replace(final)
