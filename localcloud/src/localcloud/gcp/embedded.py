"""Builds and starts the emulated Google Cloud."""

from pathlib import Path

from localcloud.addresses import Places
from localcloud.api_faults import ApiFaults
from localcloud.callers import CallerCheck, Callers
from localcloud.calls import Calls
from localcloud.faults import Faults
from localcloud.gcp import groups, instances
from localcloud.gcp.admin_api import GoogleAdmin
from localcloud.gcp.hardware import GoogleMachines
from localcloud.gcp.server import Endpoint, Front
from localcloud.gcp.state import GoogleState, make_state
from localcloud.machines.manager import MachineManager
from localcloud.time_scale import TimeScale


class GoogleCloud:
    """The emulated Google Cloud. Raises OSError when its address is in use."""

    def __init__(
        self, places: Places, machines: Path, manager: MachineManager, time_scale: TimeScale, callers: Callers
    ) -> None:  # noqa: PLR0913
        calls = Calls()
        faults, api_faults = Faults(machines), ApiFaults()
        self._hardware = GoogleMachines(manager, callers, faults)
        self.state = make_state(places, self._hardware, calls, time_scale=time_scale)
        self._hardware.state = self.state
        self.admin = admin_of(self.state, faults, api_faults)
        host, port = places.google_host, places.google_port
        front = Front(self.state, api_faults)
        self._endpoint = Endpoint(host, port, front.answer, CallerCheck(callers, {f"{host}:{port}"}))

    def start(self) -> None:
        """Start to serve."""
        self._endpoint.start()

    def round(self) -> None:
        """One round of the control loop."""
        one_round(self.state)

    def stop(self) -> None:
        """Stop serving; the machine manager ends the machines."""
        self._hardware.close()
        self._endpoint.stop()


def one_round(state: GoogleState) -> None:
    """Advance every instance, group and operation by one step."""
    with state.lock:
        now = state.now()
        for machine in list(state.machines.values()):
            instances.advance(state, machine, now)
        for group in list(state.groups.values()):
            groups.advance(state, group, now)
        state.operations.advance()


def admin_of(state: GoogleState, faults: Faults, api_faults: ApiFaults) -> GoogleAdmin:
    """The admin API's verbs for this state."""
    return GoogleAdmin(
        state=state,
        lock=state.lock,
        billing_log=state.billing_log,
        calls=state.calls,
        faults=faults,
        api_faults=api_faults,
    )
