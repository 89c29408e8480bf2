"""A machine whose first process is a real systemd, in namespaces of its own: nothing of it reaches this machine.

Its /etc, /opt, /var/lib/gpu-fleet and /run are its own, its network is a loopback with the address of instance
metadata. It runs this clone as its release.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLONE: Final = Path(__file__).parents[2]
SHA256: Final = "ab" * 32
METADATA: Final = "169.254.169.254"
ADDRESS: Final = "10.9.9.9"
NAME: Final = "control.prod.internal"
PYTHON: Final = shutil.which("python3", path="/usr/bin")
_NEEDED: Final = ("unshare", "nsenter", "setpriv", "useradd", "ip", "curl")
_SYSTEMD: Final = Path("/usr/lib/systemd/systemd")
_LIMIT_S: Final = 120.0
_BOOT: Final = f"""\
set -e
mount --make-rprivate /
mount -t proc proc /proc
mkdir "$1/etc"
cp -a /etc/. "$1/etc"
rm -rf "$1"/etc/systemd/system/*
for unit in systemd-udevd systemd-logind systemd-timesyncd systemd-resolved; do
  ln -s /dev/null "$1/etc/systemd/system/$unit.service"
done
printf '127.0.0.1 localhost\\n{ADDRESS} {NAME}\\n' >"$1/etc/hosts"
mount --bind "$1/etc" /etc
mount --bind "$1/opt" /opt
mount --bind "$2" "/opt/gpu-fleet/releases/{SHA256}/lib"
mount --bind "$3" /opt/packages
mkdir -p /var/lib/gpu-fleet
mount --bind "$1/data" /var/lib/gpu-fleet
for folder in /tmp /var/tmp /var/log; do mount -t tmpfs -o mode=1777 own "$folder"; done
mount -t tmpfs -o mode=755 own /run
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
for address in {METADATA} {ADDRESS}; do ip address add "$address/32" dev lo; done
export container=docker
exec {_SYSTEMD} --system --unit=basic.target --log-target=console --show-status=no
"""
_COMMAND: Final = f"""\
#!/bin/sh
here=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
export PYTHONPATH="$here/lib:/opt/packages" PYTHONDONTWRITEBYTECODE=1
exec {PYTHON} -P -m cli.main "$@"
"""


def missing() -> str:
    """Why such a machine cannot be made here; empty: it can."""
    if os.geteuid() != 0:
        return "making namespaces and users takes root"
    if not _SYSTEMD.is_file():
        return "no systemd on this machine"
    if lacking := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"no {', '.join(lacking)} on this machine"
    if PYTHON is None or _version(PYTHON) != f"{sys.version_info.major}.{sys.version_info.minor}":
        return "no /usr/bin/python3 of this version, which users without rights can run"
    probe = "mount --make-rprivate / && umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    done = subprocess.run([*_UNSHARE, "sh", "-c", probe], capture_output=True, timeout=30, check=False)
    return "" if done.returncode == 0 else "this kernel lets nobody mount control groups in a namespace"


_UNSHARE: Final = ("unshare", "--kill-child", "-p", "-f", "-m", "-n", "-C", "-u", "-i", "--mount-proc")


def _version(python: str) -> str:
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(
        [python, "-c", asked], capture_output=True, text=True, timeout=30, check=True
    ).stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that runs."""

    folder: Path
    first: int
    """Its first process, as this machine numbers it."""

    def run(self, *words: str | Path, code: int | None = 0, limit_s: float = _LIMIT_S) -> str:
        """A command there, as root; what it printed."""
        command = ["nsenter", "-t", str(self.first), "-m", "-p", "-n", "-C", "-u", "-i", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        assert code is None or done.returncode == code, f"{words}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout + done.stderr

    def is_true(self, *words: str | Path) -> bool:
        """Whether a command there ends well."""
        command = ["nsenter", "-t", str(self.first), "-m", "-p", "-n", "-C", "-u", "-i", *map(str, words)]
        return subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False).returncode == 0

    def as_unit(self, unit: str, user: str, *words: str | Path) -> Sequence[str | Path]:
        """The words of a command with a unit's user and in its control group, as if the unit had been taken over."""
        enter = 'echo $$ >"/sys/fs/cgroup/system.slice/$1/cgroup.procs" && shift && exec "$@"'
        drop = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
        return ("sh", "-c", enter, "sh", unit, *drop, *words)


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine that has booted and runs no service of ours yet."""
    release = folder / "opt" / "gpu-fleet" / "releases" / SHA256
    (release / "bin").mkdir(parents=True)
    (release / "lib").mkdir()
    (folder / "opt" / "packages").mkdir()
    (folder / "data").mkdir()
    (release / "bin" / "gpufleet").write_text(_COMMAND)
    (release / "bin" / "gpufleet").chmod(0o755)
    (folder / "opt" / "gpu-fleet" / "current").symlink_to(f"/opt/gpu-fleet/releases/{SHA256}")
    with (folder / "machine.log").open("wb") as log:
        process = subprocess.Popen(
            [*_UNSHARE, "bash", "-c", _BOOT, "boot", folder, CLONE, sysconfig.get_path("purelib")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        made = Machine(folder=folder, first=_child(process))
        _wait_until_booted(made)
        yield made
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _child(process: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + 30
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < until:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError("the machine's first process did not start")


def _wait_until_booted(made: Machine) -> None:
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        if made.run("systemctl", "is-system-running", code=None).strip() in ("running", "degraded"):
            return
        time.sleep(0.2)
    raise AssertionError(f"no systemd: {(made.folder / 'machine.log').read_text(errors='replace')[-3000:]}")
