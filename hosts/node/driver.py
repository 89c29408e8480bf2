"""Checks, before the model is fetched, that the accelerators have a driver, and that it is new enough."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from serving.accelerators.launch import AcceleratorLaunch
from serving.engine_container import launch_of
from serving.instance_settings import EngineSettings

EFA: Final = "/dev/infiniband"
"""The folder of network devices for engines that span machines."""


def container_devices(root: Path, launch: AcceleratorLaunch) -> tuple[str, ...]:
    """Return the device files that the engine's container gets, as absolute paths of the machine."""
    network = (EFA,) if (root / EFA.lstrip("/")).exists() else ()
    return (*_accelerators(root, launch), *network)


def _accelerators(root: Path, launch: AcceleratorLaunch) -> tuple[str, ...]:
    found = {path for pattern in launch.access.files for path in root.glob(pattern.lstrip("/"))}
    return tuple(sorted(f"/{path.relative_to(root)}" for path in found))


def groups(root: Path, files: Iterable[str]) -> tuple[int, ...]:
    """Return the groups of the machine that may open these files, sorted; without root's, which every engine has."""
    found = {(root / path.lstrip("/")).stat().st_gid for path in files}
    return tuple(sorted(found - {0}))


def installed(root: Path, launch: AcceleratorLaunch) -> str | None:
    """Return the driver's version, such as `580.95.05`; None if no driver reports one."""
    if launch.driver is None:
        return None
    try:
        found = launch.driver.pattern.search((root / launch.driver.place).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found[1] if found else None


def why_unusable(root: Path, launch: AcceleratorLaunch, engine: EngineSettings) -> str | None:
    """Return why the engine cannot run on this machine (name, value, fix); None if it can or nothing is known."""
    if launch.access.files and not _accelerators(root, launch):
        return f"devices: {', '.join(launch.access.files)}: none exists: {launch.no_driver}"
    version = installed(root, launch)
    if version is None or launch.driver is None:
        return None
    return launch.driver.why_too_old(version, engine.env, launch_of(engine.kind).cuda)


def hint(root: Path, launch: AcceleratorLaunch) -> str:
    """Return a hint about the driver for an engine that did not start; empty without one."""
    return "" if launch.driver is None else launch.driver.hint(installed(root, launch))
