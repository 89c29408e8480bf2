"""Starts and ends emulated machines, and removes those that an earlier cloud left."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gpufleet
import localcloud
from gpufleet.domain.catalogue import AcceleratorKind, UnknownMachineError, machine
from gpufleet.domain.model import Cloud
from localcloud.machines import image, volumes
from localcloud.machines.processes import children
from localcloud.machines.spec import LOG_FOLDER, MARK, MachineSpec, Order
from localcloud.machines.volumes import Volume, VolumePool

_NAMESPACES: Final = (
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_KILL_AFTER_S: Final = 25.0
CODE: Final = os.pathsep.join(str(Path(str(one.__file__)).resolve().parents[1]) for one in (localcloud, gpufleet))
"""PYTHONPATH of a machine's Python processes."""


class MachineManager:
    """All machines of one embedded cloud, in one folder."""

    def __init__(self, folder: Path, *, plain: bool = False) -> None:
        """`plain`: run without namespaces. Removes what an earlier cloud left in `folder`."""
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._image = folder / ".image"
        self._volumes = VolumePool(folder / volumes.POOL_FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        self._end_strays()
        image.install(self._image, CODE)
        self.is_sealed = not plain and _namespaces_work()

    def start(self, order: Order) -> None:
        """Boot the machine of an instance: private root, user data, supervisor. Raises OSError."""
        root = self.folder / order.instance
        _make_root(root)
        _make_devices(root, order.cloud, order.machine_type)
        for volume in order.volumes:
            self._volumes.attach(volume, root)
        self._spec(order).save(root)
        if order.script is not None:
            script = root / "var/lib/cloud/instance/user-data"
            script.write_bytes(order.script)
            script.chmod(0o700)
        log = (root / LOG_FOLDER / "machine.log").open("ab")
        command = [sys.executable, "-P", "-m", "localcloud.machines.supervisor", "--root", str(root)]
        if self.is_sealed:
            command = [*_NAMESPACES, *command, "--seal"]
        with log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(root),
                cwd=root,
                start_new_session=True,
            )
        self._running[order.instance] = process

    def _environment(self, root: Path) -> dict[str, str]:
        """The environment of a supervisor; that of the machine's processes is separate."""
        system = os.environ.get("PATH", "/usr/bin:/bin")
        found = {"PATH": system, "PYTHONPATH": CODE, "GPUFLEET_ROOT": str(root)}
        return found | ({MARK: os.environ[MARK]} if MARK in os.environ else {})

    def is_alive(self, instance_id: str) -> bool:
        """Whether any process of the machine may still run."""
        process = self._running.get(instance_id)
        if process is None:
            return False
        if process.poll() is None:
            return True
        self._forget_process(instance_id)
        return False

    def end(self, instance_id: str) -> None:
        """Request an orderly shutdown; after a timeout all processes are killed. Returns at once."""
        process = self._running.get(instance_id)
        if process is None or process.poll() is not None or instance_id in self._timers:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.write(b"stop\n")
                process.stdin.flush()
        timer = threading.Timer(_KILL_AFTER_S, _kill, [process.pid])
        timer.daemon = True
        timer.start()
        self._timers[instance_id] = timer

    def attach(self, instance_id: str, volume: Volume) -> None:
        """Attach a volume to a machine, running or not. Raises OSError."""
        self._volumes.attach(volume, self.folder / instance_id)

    def detach(self, instance_id: str, volume_id: str) -> None:
        """Detach a volume even if it is in use; no effect if it is not attached. Raises OSError."""
        self._volumes.detach(volume_id, self.folder / instance_id)

    def is_mounted(self, instance_id: str, volume_id: str) -> bool:
        """Whether a running machine has the volume mounted."""
        root = self.folder / instance_id
        return self.is_alive(instance_id) and volumes.mounted_at(root, volume_id) is not None

    def discard(self, volume_id: str) -> None:
        """Delete a volume."""
        self._volumes.discard(volume_id)

    def set_aside(self, instance_id: str, uid: str) -> None:
        """Move the machine's folder to `.ended`, so that another machine can have its name.

        Its volumes return to the volume pool.
        """
        root = self.folder / instance_id
        if root.exists():
            self._volumes.detach_all(root)
            aside = self.folder / ".ended" / f"{instance_id}-{uid}"
            aside.parent.mkdir(exist_ok=True)
            root.rename(aside)

    def close(self) -> None:
        """End all machines at once: a supervisor ends when its standard input closes."""
        for process in self._running.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for instance_id, process in list(self._running.items()):
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                _kill(process.pid)
                process.wait(timeout=5)
            self._forget_process(instance_id)

    def _forget_process(self, instance_id: str) -> None:
        process = self._running.pop(instance_id)
        if not self.is_sealed and process.returncode != 0:
            # a killed supervisor without a namespace leaves its children running
            _kill_marked(f"GPUFLEET_ROOT={self.folder / instance_id}")
        timer = self._timers.pop(instance_id, None)
        if timer is not None:
            timer.cancel()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _spec(self, order: Order) -> MachineSpec:
        disks, disk_bytes = _disks(order.cloud, order.machine_type)
        return MachineSpec(
            instance=order.instance,
            uid=order.uid,
            cloud=str(order.cloud),
            address=order.address,
            zone=order.zone,
            region=order.region,
            machine_type=order.machine_type,
            variables=dict(order.variables),
            nvme_disks=disks if order.nvme_disks is None else order.nvme_disks,
            nvme_disk_bytes=disk_bytes,
            image_commands=str(self._image),
            code=CODE,
            mark=os.environ.get(MARK, ""),
        )

    def _end_strays(self) -> None:
        """Kill processes of a crashed cloud, and delete its folders."""
        _kill_marked(f"GPUFLEET_ROOT={self.folder}/")
        for root in self.folder.iterdir():
            if root.is_dir():
                shutil.rmtree(root, ignore_errors=True)


def _make_root(root: Path) -> None:
    if root.exists():
        # a stopped instance starts again: its disk is kept, its NVMe is empty, nothing is mounted
        volumes.unmount_all(root)
        shutil.rmtree(root / "mnt", ignore_errors=True)
        shutil.rmtree(root / "run", ignore_errors=True)
    for folder in ("etc/systemd/system", "var/log/units", "var/lib/cloud/instance", "run", "tmp", "root", "mnt"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    root.chmod(0o700)


_DEVICE_FILES: Final[Mapping[AcceleratorKind, tuple[str, ...]]] = {
    AcceleratorKind.AMD: ("kfd", "dri/renderD{number}"),
    AcceleratorKind.NEURON: ("neuron{index}",),
    AcceleratorKind.TPU: ("vfio/vfio", "vfio/{index}"),
}
"""Files below /dev of a machine whose image has the driver. The first one of AMD's cards has the number 128."""


def _make_devices(root: Path, cloud: Cloud, machine_type: str) -> None:
    """Make the device files of the machine type, as plain files."""
    try:
        found = machine(cloud, machine_type)
    except UnknownMachineError:
        return
    for index in range(found.gpu_count):
        for name in _DEVICE_FILES.get(found.accelerator, ()):
            file = root / "dev" / name.format(index=index, number=128 + index)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()


def _disks(cloud: Cloud, machine_type: str) -> tuple[int, int]:
    try:
        found = machine(cloud, machine_type)
    except UnknownMachineError:
        return 0, 0
    return found.nvme_disks, found.nvme_disk_bytes


def _namespaces_work() -> bool:
    """Whether this kernel allows user, mount and pid namespaces and sealing them."""
    if shutil.which("unshare") is None:
        return False
    probe = [*_NAMESPACES, sys.executable, "-P", str(Path(__file__).with_name("sandbox.py"))]
    with contextlib.ExitStack() as stack:
        import tempfile

        folder = stack.enter_context(tempfile.TemporaryDirectory())
        try:
            return subprocess.run([*probe, folder], capture_output=True, timeout=20, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


def _kill_marked(mark: str) -> None:
    """Kill every process with an environment variable that starts with `mark`."""
    wanted = mark.encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and any(value.startswith(wanted) for value in _variables(entry)):
                _kill(int(entry.name))


def _variables(process: Path) -> list[bytes]:
    """The environment of a process. Raises OSError when it has ended or belongs to another user."""
    return (process / "environ").read_bytes().split(b"\0")


def _kill(pid: int) -> None:
    for found in [pid, *children(pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(found, signal.SIGKILL)
