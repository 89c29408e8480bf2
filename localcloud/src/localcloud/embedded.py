"""Builds and starts the parts of the embedded cloud. `cloud.py` imports this after it has cleaned the environment."""

import contextlib
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from moto.ec2.models import EC2Backend

from gpufleet.domain.model import Cloud
from localcloud.addresses import Places
from localcloud.admin_api import AdminApi
from localcloud.api_faults import ApiFaults
from localcloud.aws.admin_api import AwsAdmin
from localcloud.aws.groups import EmulatedAutoScaling
from localcloud.aws.hardware import LoopbackMachines
from localcloud.aws.images import add_images
from localcloud.aws.install import install
from localcloud.aws.reconcile import one_round
from localcloud.aws.server import Endpoint, Front
from localcloud.aws.state import AwsState
from localcloud.callers import CallerCheck, Callers
from localcloud.calls import Calls
from localcloud.faults import Faults
from localcloud.gcp.embedded import GoogleCloud
from localcloud.machines.manager import MachineManager
from localcloud.slack.server import SlackSink
from localcloud.time_scale import TimeScale

_ROUND: Final = timedelta(seconds=1)
"""Interval between two rounds; divided by the time scale, as all waiting times."""
_LONGEST_ROUND_S: Final = 0.25


class CloudError(Exception):
    """The embedded cloud cannot start; the message states why and what to do."""


@dataclass(slots=True, kw_only=True)
class EmbeddedCloud:
    """A running embedded cloud."""

    cloud_state: AwsState
    ec2: EC2Backend
    scaling: EmulatedAutoScaling
    manager: MachineManager
    hardware: LoopbackMachines
    endpoint: Endpoint
    google: GoogleCloud
    slack: SlackSink
    _ending: threading.Event
    _loop: threading.Thread

    def stop(self) -> None:
        """Stop all machines, then the servers."""
        self._ending.set()
        self._loop.join(timeout=10)
        self.manager.close()
        self.hardware.close()
        self.google.stop()
        self.endpoint.stop()
        self.slack.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Options of `start`."""

    places: Places
    machines: Path
    time_scale: TimeScale
    token: str
    """The token that callers need."""
    names: tuple[str, ...] = ()
    """More host names for AWS's APIs."""
    plain: bool = False
    """Run machines in plain folders, without namespaces."""


def start(options: StartOptions) -> EmbeddedCloud:
    """Start servers and loop. Raises CloudError when an address is in use."""
    places, machines, time_scale = options.places, options.machines, options.time_scale
    callers = Callers(options.token)
    calls = Calls()
    manager = MachineManager(machines, plain=options.plain)
    faults = Faults(machines)
    hardware = LoopbackMachines(manager, callers, faults)
    cloud_state = AwsState(places=places, hardware=hardware, time_scale=time_scale)
    ec2, scaling = install(cloud_state)
    hardware.connect(ec2, scaling)
    add_images(ec2)
    api_faults = ApiFaults()
    admin = AwsAdmin(
        cloud_state=cloud_state,
        ec2=ec2,
        scaling=scaling,
        lock=cloud_state.lock,
        billing_log=cloud_state.billing_log,
        calls=calls,
        faults=faults,
        api_faults=api_faults,
    )
    with _port_taken(places.google_host, places.google_port):
        google = GoogleCloud(places, machines, manager, time_scale, callers)
    check = CallerCheck(callers, {f"{name}:{places.api_port}" for name in (places.api_host, *options.names)})
    admin_api = AdminApi({Cloud.AWS: admin, Cloud.GCP: google.admin})
    with _port_taken(places.api_host, places.api_port):
        endpoint = Endpoint(places.api_host, places.api_port, Front(cloud_state, calls, api_faults, admin_api, check))
    with _port_taken(places.slack_host, places.slack_port):
        slack = SlackSink(places.slack_host, places.slack_port, callers)
    ending = threading.Event()
    loop = threading.Thread(
        target=_rounds, args=(cloud_state, ec2, scaling, google, ending), name="rounds", daemon=True
    )
    cloud = EmbeddedCloud(
        cloud_state=cloud_state,
        ec2=ec2,
        scaling=scaling,
        manager=manager,
        hardware=hardware,
        endpoint=endpoint,
        google=google,
        slack=slack,
        _ending=ending,
        _loop=loop,
    )
    endpoint.start()
    google.start()
    slack.start()
    loop.start()
    return cloud


def _rounds(
    cloud_state: AwsState, ec2: EC2Backend, scaling: EmulatedAutoScaling, google: GoogleCloud, ending: threading.Event
) -> None:
    pause_s = min(_LONGEST_ROUND_S, cloud_state.time_scale.shorten(_ROUND).total_seconds())
    while not ending.wait(pause_s):
        for step in (lambda: one_round(cloud_state, ec2, scaling), google.round):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - one bad group must not end the cloud; the error is logged and the next round tries again
                print(f"a round failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _port_taken(host: str, port: int) -> Generator[None]:
    try:
        yield
    except (OSError, SystemExit) as error:
        raise CloudError(
            f"cannot listen on {host}:{port} ({error}): if another embedded cloud runs, stop it with"
            " `gpufleet local down`"
        ) from error
