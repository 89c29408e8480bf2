"""`python -m localcloud.cloud`: the embedded cloud, one process. When it ends, everything it started ends with it."""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from moto.ec2.models import EC2Backend

from localcloud.aws.calls import Calls
from localcloud.aws.groups import LivingAutoScaling
from localcloud.aws.images import add_images
from localcloud.aws.install import install
from localcloud.aws.reconcile import one_round
from localcloud.aws.server import Endpoint, Front
from localcloud.aws.world import World
from localcloud.control_api import Control
from localcloud.faults import Faults
from localcloud.hardware import LoopbackHardware
from localcloud.machines.yard import Yard
from localcloud.places import Places
from localcloud.slack.server import SlackSink

_ROUND_S: Final = 0.5
_LOCK_FILE: Final = "cloud.lock"


class CloudError(Exception):
    """The embedded cloud cannot start; the message says why and what to do."""


@dataclass(slots=True, kw_only=True)
class EmbeddedCloud:
    """A started cloud."""

    world: World
    ec2: EC2Backend
    scaling: LivingAutoScaling
    hardware: LoopbackHardware
    endpoint: Endpoint
    slack: SlackSink
    _ending: threading.Event
    _loop: threading.Thread

    def stop(self) -> None:
        """End all machines, then the servers."""
        self._ending.set()
        self._loop.join(timeout=10)
        self.hardware.close()
        self.endpoint.stop()
        self.slack.stop()


def start(places: Places, machines: Path) -> EmbeddedCloud:
    """Start the cloud with its servers and its loop. Raises CloudError when an address is taken."""
    strip_environment()
    calls = Calls()
    hardware = LoopbackHardware(Yard(machines, places), calls)
    world = World(places=places, hardware=hardware)
    ec2, scaling = install(world)
    hardware.connect(ec2, scaling)
    add_images(ec2)
    control = Control(world=world, ec2=ec2, scaling=scaling, calls=calls, faults=Faults(machines))
    with _port_taken(places.api_host, places.api_port):
        endpoint = Endpoint(places.api_host, places.api_port, Front(world, calls, control))
    with _port_taken(places.slack_host, places.slack_port):
        slack = SlackSink(places.slack_host, places.slack_port)
    ending = threading.Event()
    loop = threading.Thread(target=_rounds, args=(world, ec2, scaling, ending), name="rounds", daemon=True)
    cloud = EmbeddedCloud(
        world=world,
        ec2=ec2,
        scaling=scaling,
        hardware=hardware,
        endpoint=endpoint,
        slack=slack,
        _ending=ending,
        _loop=loop,
    )
    endpoint.start()
    slack.start()
    loop.start()
    return cloud


def _rounds(world: World, ec2: EC2Backend, scaling: LivingAutoScaling, ending: threading.Event) -> None:
    while not ending.wait(_ROUND_S):
        try:
            one_round(world, ec2, scaling)
        except Exception as error:  # noqa: BLE001 - one bad group must not end the cloud; it is said and tried again
            print(f"a round failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _port_taken(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, SystemExit) as error:
        raise CloudError(
            f"{host}:{port} cannot be served ({error}); is another embedded cloud running?"
            " `gpufleet local down` ends it"
        ) from error


def strip_environment() -> None:
    """Forget every real cloud credential and endpoint of who started us."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "AZURE_")) or name.upper().endswith("_PROXY"):
            del os.environ[name]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"


def main() -> int:
    """Run until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m localcloud.cloud", description="the embedded cloud on loopback")
    parser.add_argument(
        "--state", type=Path, required=True, help="folder for the pid and what the cloud says of itself"
    )
    parser.add_argument("--machines", type=Path, help="folder of the machines (default: `machines` beside the state)")
    parser.add_argument("--network", default=Places().network, help="first two numbers of all addresses, 127.N")
    options = parser.parse_args()
    state: Path = options.state.resolve()
    machines: Path = (options.machines or state.parent / "machines").resolve()
    state.mkdir(parents=True, exist_ok=True)
    try:
        with _only_one(state):
            return _serve(Places(network=options.network), state, machines)
    except (CloudError, ValueError) as error:
        print(f"the embedded cloud cannot start: {error}", file=sys.stderr)
        return 1


def _serve(places: Places, state: Path, machines: Path) -> int:
    ending = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        ending.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    cloud = start(places, machines)
    ready = {"pid": os.getpid(), "api": places.api_url, "slack": places.slack_url, "machines": str(machines)}
    (state / "cloud.json").write_text(json.dumps(ready, indent=1) + "\n", "utf-8")
    print(f"the embedded cloud answers at {places.api_url}", flush=True)
    try:
        ending.wait()
    finally:
        cloud.stop()
        (state / "cloud.json").unlink(missing_ok=True)
    return 0


@contextlib.contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """One cloud per state folder. Raises CloudError when another one has it."""
    with (state / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CloudError(f"another one runs with the state in {state}; `gpufleet local down` ends it") from error
        yield


if __name__ == "__main__":
    sys.exit(main())
