"""Installs Prometheus, Alertmanager and HAProxy from Debian, without their services."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from gpufleet.toolchain.tools import TOOLS, Tool, find_tool
from scripts.setup.running import SetupError, announce, output_of, run, tail

LIMIT_S: Final = 600
SCRIPT: Final = Path(__file__).with_name("debian_packages.sh")


@dataclass(frozen=True, slots=True)
class Missing:
    """Packages that must be installed, with the reasons."""

    packages: tuple[str, ...]
    reasons: tuple[str, ...]


FOR_TESTS: Final = {
    "chromium": ("chromium", "slow proofs open the pages in it"),
    "pg_ctl": ("postgresql", "tests run the ledger on it, too"),
}
"""Package and purpose by program: what `make test-all` needs in addition to the product's dependencies."""


def find_missing(need_venv_module: bool, *, for_tests: bool = False) -> Missing:
    """Return the Debian packages that are missing or too old."""
    packages: list[str] = []
    reasons: list[str] = []
    for tool in TOOLS:
        if find_tool(tool) is None:
            packages.append(tool.package)
            reasons.append(f"{tool.package} ({tool.purpose})")
    if need_venv_module:
        packages.append("python3-venv")
        reasons.append("python3-venv (the environment that uv lives in)")
    for program, (package, purpose) in FOR_TESTS.items() if for_tests else ():
        # Debian does not add PostgreSQL's programs to PATH
        if shutil.which(program) is None and not any(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")):
            packages.append(package)
            reasons.append(f"{package} ({purpose})")
    return Missing(tuple(packages), tuple(reasons))


def install(missing: Missing, folders: Folders) -> None:
    """Install the packages as root or through passwordless sudo. Otherwise raises SetupError with the command to
    run.
    """
    if not missing.packages:
        return
    if shutil.which("apt-get") is None:
        raise SetupError(
            f"{', '.join(missing.packages)} cannot be found, and this system is not Debian (apt-get is missing): "
            f"install {' and '.join(_versions())} with your system's packages, then run this again"
        )
    command = ["sh", str(SCRIPT), *missing.packages]
    if os.geteuid() != 0:
        if shutil.which("sudo") is None or output_of(["sudo", "-n", "true"]) is None:
            line = " ".join(["sudo", "sh", f"'{SCRIPT}'", *missing.packages])
            raise SetupError(
                "Debian packages are needed, and you are neither root nor may you use sudo without a password.\n"
                f"Run this line, then run make again (it starts no service):\n\n    {line}\n"
            )
        command = ["sudo", "-n", *command]
    log = folders.logs / "setup-debian.log"
    log.unlink(missing_ok=True)
    run(command, doing=f"installing {', '.join(missing.packages)}", log=log, limit_s=LIMIT_S)
    if still := find_missing(need_venv_module=False).packages:
        raise SetupError(
            f"{', '.join(still)} is installed, but not in the version needed ({', '.join(_versions())}); "
            f"the end of {log}:\n{tail(log)}"
        )
    announce(f"      installed {', '.join(missing.packages)}; no service was started")


def _versions() -> tuple[str, ...]:
    return tuple(
        f"{tool.package} {re.sub(r'[(), ]+', '.', str(tool.at_least)).strip('.')} or newer" for tool in TOOLS
    )


def describe(tool: Tool) -> str:
    """Return in one line where a tool was found."""
    found = find_tool(tool)
    return f"{tool.name} {'.'.join(map(str, found.version))} ({found.path})" if found else f"{tool.name}: missing"
