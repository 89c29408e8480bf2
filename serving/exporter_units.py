"""The systemd units of an instance's exporters: its accelerators' and node_exporter."""

from collections.abc import Sequence
from typing import Final

from serving import metrics
from serving.accelerators.launch import EXPORTER_PORT, AcceleratorLaunch, AgentExporter
from serving.unit_files import container_unit, no_connections, unit_text

EXPORTER_UNIT: Final = "gpufleet-exporter.service"
NODE_EXPORTER_UNIT: Final = "gpufleet-node-exporter.service"
EXPORTER_GROUP: Final = 2001
"""Group of the accelerators' exporter, and of nothing else. The packet filter matches on it."""
_NO_USER: Final = 65534


def exporter_unit(launch: AcceleratorLaunch, *, image: str, host: str, agent: Sequence[str] = ()) -> str:
    """Return the systemd unit of the exporter of an instance's accelerators.

    A container runs as root of the machine, with the options that its contract states. It opens no connections, not
    even to metadata, unless it needs metadata. `image`: of that container. `agent`: the command of the node agent's
    program, for an exporter without an image.
    """
    exporter = launch.exporter
    if isinstance(exporter, AgentExporter):
        return unit_text(
            description=f"gpu-fleet {exporter.title}",
            command=[*agent, exporter.command, f"{host}:{EXPORTER_PORT}"],
            before=(),
            stop_s=10,
            more=(f"User={_NO_USER}", f"Group={EXPORTER_GROUP}", "Restart=always", "RestartSec=5"),
        )
    variables = exporter.environment(EXPORTER_PORT)
    arguments = [
        *exporter.options,
        f"--user=0:{EXPORTER_GROUP}",
        *(f"--env={name}={value}" for name, value in variables.items()),
        image,
        *exporter.arguments(host, EXPORTER_PORT),
    ]
    before = tuple(no_connections(EXPORTER_GROUP, metadata=exporter.metadata))
    return container_unit(exporter.title, "gpufleet-exporter", arguments, before)


_HOST_COLLECTORS: Final = ("cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "pressure")
"""The collectors of node_exporter that are useful on a serving machine."""


def node_exporter_unit(image: str, *, host: str) -> str:
    """Return the systemd unit of node_exporter's container. It can read the machine's files, but write none."""
    arguments = [
        "--pid=host",
        "--user=65534:65534",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--memory=128m",
        "--volume=/:/host:ro,rslave",
        image,
        "--path.rootfs=/host",
        f"--web.listen-address={host}:{metrics.PORTS[metrics.Source.HOST]}",
        "--web.disable-exporter-metrics",
        "--collector.disable-defaults",
        *(f"--collector.{name}" for name in _HOST_COLLECTORS),
        # Debian's build excludes /mnt by default, where the cache's disk is mounted
        "--collector.filesystem.mount-points-exclude=^/(dev|proc|run|sys|var/lib/docker/.+)($|/)",
    ]
    return container_unit("node exporter", "gpufleet-node-exporter", arguments)
