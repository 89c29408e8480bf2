"""The gate in front of an engine that cannot protect itself: its configuration file and its unit."""

from pathlib import Path, PurePosixPath
from typing import Final

from gpufleet.domain.files import write_private
from hosts.node import engine_key
from hosts.node.ports import PermanentError, StepError, Units
from serving import engine_container, engine_gate
from serving.engine_gate import GateConfig
from serving.engines import CONTRACTS
from serving.instance_settings import InstanceSettings

_READABLE: Final = 0o644
"""The gate's user reads the file; only root can enter its folder on the machine."""


def config_path(root: Path) -> Path:
    """Return the path of the configuration below the path prefix `root`."""
    return root / engine_gate.CONFIG_FILE.relative_to("/")


def listen_address(kind: str, address: str) -> tuple[str, int]:
    """Return where the engine of an instance with this address listens: on loopback if it has a gate."""
    gate = engine_container.launch_of(kind).gate
    return (address, engine_container.PORT) if gate is None else (engine_gate.loopback_of(address), gate.port)


def install(units: Units, root: Path, settings: InstanceSettings, address: str) -> bool:
    """Write the configuration and the unit of the gate. True if one of them changed.

    Raises PermanentError without an image, StepError if they cannot be written.
    """
    kind = settings.engine.kind
    launch = engine_container.launch_of(kind)
    if launch.gate is None:
        return False
    if settings.gate_image is None:
        raise PermanentError(
            f"gate_image: is missing; {kind} cannot protect itself: set machines.gate_image to an HAProxy image"
        )
    config = GateConfig(
        gate=launch.gate,
        probes=CONTRACTS[kind].probes,
        address=address,
        port=engine_container.PORT,
        key_variable=launch.key_variable,
    )
    path = config_path(root)
    text = engine_gate.render(config)
    unit = engine_container.gate_unit(
        settings.gate_image,
        config_file=PurePosixPath(path),
        key_file=PurePosixPath(engine_key.key_path(root)),
    )
    try:
        changed = not path.is_file() or path.read_text("utf-8") != text
        if changed:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, text, _READABLE)
    except OSError as error:
        raise StepError(f"the gate's configuration cannot be written to {path}: {error.strerror}") from error
    return units.install(engine_gate.UNIT, unit) or changed
