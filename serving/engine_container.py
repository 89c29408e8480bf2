"""The engine's container: its environment and its systemd unit."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Final

from gpufleet.domain.catalogue import AcceleratorKind
from serving import engine_gate, metrics
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.accelerators.launch import AcceleratorLaunch
from serving.engines import CONTRACTS
from serving.engines.launch import (
    OFFLINE,
    ArgumentError,
    EngineServer,
    Launch,
    check_adapters,
    check_arguments,
    check_environment,
)
from serving.unit_files import container_unit, no_connections, no_metadata, quote, unit_text

PORT: Final = metrics.PORTS[metrics.Source.ENGINE]
UNIT: Final = "gpufleet-engine.service"
STOP_GRACE_S: Final = 15
"""From the end of the engine's own shutdown timeout to SIGKILL. The engine may hang there because of its clients."""
KEY_FILE: Final = PurePosixPath("/run/gpu-fleet/engine.env")
"""On an instance: a file with the engine's API key as a container variable. In memory; only root can read it."""


STOPPING_FILE: Final = PurePosixPath("/run/gpu-fleet/engine-stopping")
"""On an instance: this file exists while the engine stops. The agent then notifies routers to send no requests."""
STOP_DELAY: Final = timedelta(seconds=3)
"""Time from that notification to SIGTERM. After SIGTERM, vLLM answers new requests with 500 but stays healthy."""
USER: Final = (2000, 0)
"""User and group of the engine's container: `vllm` of its image, which is built to run as this user (vllm#40275)."""

_KEY: Final = re.compile(r"[0-9a-f]{64}")
LAUNCHED_NAMES: Final = ", ".join(kind for kind, contract in CONTRACTS.items() if contract.launch is not None)
"""The engines that the fleet starts, for people."""
NO_KEY: Final = "is not an engine key (64 hexadecimal digits; `gpufleet bootstrap` creates one)"


def is_key(text: str) -> bool:
    """Whether the text has the form of an environment's engine key: 256 bits in hexadecimal.

    The agent gives no other text, such as another secret, to an engine.
    """
    return _KEY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContainer:
    """The settings of one engine on one instance."""

    kind: str
    image: str
    """With a digest: `registry/name@sha256:…`."""
    server: EngineServer
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    accelerator: str = AcceleratorKind.NVIDIA

    @property
    def launch(self) -> Launch:
        """How the engine is started. Raises ArgumentError: the fleet does not start this engine."""
        return launch_of(self.kind)


def find_launch(kind: str) -> Launch | None:
    """Return how an engine is started; None: the fleet does not start it."""
    return CONTRACTS[kind].launch if kind in CONTRACTS else None


def launch_of(kind: str) -> Launch:
    """Return how an engine is started. Raises ArgumentError: the fleet does not start this engine."""
    launch = find_launch(kind)
    if launch is None:
        wrong = "the fleet reads its metrics but does not start it" if kind in CONTRACTS else "is not known"
        raise ArgumentError(f"engine {kind}: {wrong}; write one of {LAUNCHED_NAMES}")
    return launch


def accelerator_launch(kind: str) -> AcceleratorLaunch:
    """Return how an instance with accelerators of this kind runs."""
    return ACCELERATORS[kind].launch


def scratch_of(kind: str, cache_dir: PurePosixPath) -> PurePosixPath:
    """Return the folder next to the models that the container may write: it keeps compiled kernels."""
    return cache_dir / f".{kind}"


def engine_unit(  # noqa: PLR0913 - the parts of a unit
    container: EngineContainer,
    *,
    cache_dir: PurePosixPath,
    key_file: PurePosixPath = KEY_FILE,
    stopping_file: PurePosixPath = STOPPING_FILE,
    devices: Sequence[str] = (),
    groups: Sequence[int] = (),
) -> str:
    """Return the systemd unit of the engine's container. Raises ArgumentError.

    `devices`: device files, besides what the options of the accelerator's `DeviceAccess` give. `groups`: groups of
    the machine that may open them.

    The API key is only in `key_file`, because every user on the machine can read a command line.
    `KillMode=mixed` signals only the container's client, which forwards SIGTERM to the engine's main process: vLLM
    drains only when its workers receive no signal. Each docker option is one argument (`--name=value`).

    The container does not run as root, has no capabilities, and writes only to memory and its scratch folder. The
    unit does not start when it cannot block the container's access to metadata.

    However the unit is stopped (by machine shutdown or by a person), routers are notified before the engine stops:
    ExecStop writes `stopping_file` and waits. After a drain, the agent writes the file itself, so ExecStop does not
    wait again.
    """
    launch, server = container.launch, container.server
    check_environment(launch, container.env)
    check_arguments(launch, server.args)
    check_adapters(launch, server.served_name, server.adapters)
    access = accelerator_launch(container.accelerator).access
    scratch, (user, group) = scratch_of(container.kind, cache_dir), USER
    variables = {**container.env, **OFFLINE, **launch.environment, **launch.folders(scratch)}
    command = [
        "docker",
        "run",
        "--rm",
        "--name=gpufleet-engine",
        "--network=host",
        "--ipc=host",
        *access.options,
        f"--user={user}:{group}",
        *(f"--group-add={one}" for one in groups),
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        # docker's default is noexec, but compilers run the files that they create here
        "--tmpfs=/tmp:exec,nosuid,nodev,mode=1777",
        *(f"--tmpfs={folder}:nosuid,nodev,mode=1777" for folder in launch.temporary),
        *(f"--device={device}" for device in devices),
        "--ulimit=memlock=-1",
        "--stop-signal=SIGTERM",
        f"--entrypoint={launch.program}",
        f"--volume={cache_dir}:{cache_dir}:ro",
        f"--volume={scratch}:{scratch}:rw",
        # a gate requires the key in the engine's place
        *([f"--env-file={key_file}"] if launch.gate is None else []),
        *(f"--env={name}={value}" for name, value in variables.items()),
        container.image,
        *launch.arguments(server),
    ]
    return unit_text(
        description=f"gpu-fleet engine: {container.kind} serving {server.served_name}",
        command=command,
        before=(
            "-docker rm --force gpufleet-engine",
            f"rm -f {quote(str(stopping_file))}",
            f"install -d -o {user} -g {group} -m 0700 {quote(str(scratch))}",
            *no_metadata(),
        ),
        stop_s=server.shutdown_timeout_s + STOP_GRACE_S,
        more=(
            f"ExecStop=-sh -c {quote(_stop_script(stopping_file))}",
            "Restart=on-failure",
            "RestartSec=5",
            "OOMPolicy=stop",
            "LimitMEMLOCK=infinity",
        ),
        after=() if launch.gate is None else (engine_gate.UNIT,),
    )


def _stop_script(file: PurePosixPath) -> str:
    name = shlex.quote(str(file))
    return f"test -e {name} || {{ touch {name}; exec sleep {STOP_DELAY.total_seconds():g}; }}"


_GATE_CONFIG: Final = "/etc/gpufleet/engine-gate.cfg"
"""In the gate's container."""


def gate_unit(
    image: str,
    *,
    config_file: PurePosixPath = engine_gate.CONFIG_FILE,
    key_file: PurePosixPath = KEY_FILE,
) -> str:
    """Return the systemd unit of the gate's container. It stops after the engine: requests that run end through it.

    The container does not run as root, writes nothing, and opens connections only to this machine.
    """
    arguments = [
        f"--user={engine_gate.USER}:{engine_gate.USER}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--memory=1g",
        "--ulimit=nofile=65536",
        # the images stop softly: an open stream would keep the old process for an hour
        "--stop-signal=SIGTERM",
        "--entrypoint=haproxy",
        f"--volume={config_file}:{_GATE_CONFIG}:ro",
        f"--env-file={key_file}",
        image,
        "-db",
        "-f",
        _GATE_CONFIG,
    ]
    before = tuple(no_connections(engine_gate.USER, beyond="lo"))
    return container_unit("engine gate", "gpufleet-engine-gate", arguments, before)
