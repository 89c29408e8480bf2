"""How an instance with accelerators of one kind runs: its engine's container, its exporter, and its driver.

Values and functions only: no I/O, standard library only.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from serving import metrics
from serving.exposition import Sample

EXPORTER_PORT: Final = metrics.PORTS[metrics.Source.ACCELERATOR]
"""Every exporter of an instance listens on this port, whatever its own default is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccess:
    """How the engine's container gets the devices."""

    files: tuple[str, ...] = ()
    """Patterns (glob) of device files. Each file is given to the container. Without any file there is no driver."""
    options: tuple[str, ...] = ()
    """More options of `docker run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterContainer:
    """An exporter with an image."""

    title: str
    options: tuple[str, ...]
    """Options of `docker run`."""
    arguments: Callable[[str, int], tuple[str, ...]]
    """Arguments after the image, by the address and port to listen on."""
    environment: Callable[[int], Mapping[str, str]] = field(default=lambda _port: {})
    """Variables of the container, by port."""
    metadata: bool = False
    """Whether it needs the instance metadata. It opens no other connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExporter:
    """An exporter without an image: a command of the node agent's program."""

    title: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersion:
    """Where the driver's version is, and which engines need a newer one."""

    place: str
    """File, without the leading slash."""
    pattern: re.Pattern[str]
    """The first group is the version."""
    why_too_old: Callable[[str, Mapping[str, str], int], str | None]
    """Why an engine with these environment variables, built with this CUDA major version, cannot run with a driver of
    this version; None: it can, or its requirement is unknown."""
    hint: Callable[[str | None], str]
    """A hint for an engine that did not start; empty without one."""


def no_defect(sample: Sample) -> str:
    """For exporters whose page shows no defects."""
    del sample
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorLaunch:
    """Everything that an instance needs for accelerators of one kind."""

    access: DeviceAccess
    exporter: ExporterContainer | AgentExporter
    driver: DriverVersion | None = None
    """None: the kernel module does not report a version that engines depend on."""
    no_driver: str = ""
    """What to do when no device file exists."""
    defect: Callable[[Sample], str] = no_defect
    """What a number of the exporter's page shows to be broken; empty: nothing."""
    reports_all: bool = True
    """Whether the page contains every device that works. Otherwise a missing one proves no defect."""
