"""A machine's first process: runs its user data and units, answers `systemctl`, and ends all processes with itself.

The machine manager starts it, in a pid and mount namespace if the kernel allows that. Standard input connects it to
the cloud: a line `stop` requests an orderly shutdown, its end (the cloud crashed) ends the machine at once.
"""

import argparse
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from localcloud.faults import FAULT_FOLDER
from localcloud.machines import processes
from localcloud.machines.sandbox import seal
from localcloud.machines.services import Service, State
from localcloud.machines.spec import LOG_FOLDER, UNIT_FOLDER, MachineSpec
from localcloud.machines.units import UnitError, parse

_USER_DATA: Final = "var/lib/cloud/instance/user-data"
_AGENT_UNIT: Final = "gpufleet-node.service"
_IDLE_S: Final = 1.0
"""Longest sleep of the loop: it polls the fault files."""
_SHUTDOWN_S: Final = 20.0
"""Limit of an orderly shutdown, after which all processes are killed."""
_BUSY: Final = (State.ACTIVE, State.ACTIVATING, State.DEACTIVATING)
_REQUEST_BYTES: Final = 65536
_NO_SUCH_UNIT: Final = 4


class Supervisor:
    """The event loop of one machine."""

    def __init__(self, root: Path, spec: MachineSpec) -> None:
        self._root = root
        self._spec = spec
        self._services: dict[str, Service] = {}
        self._user_data: int | None = None
        self._waiting: list[tuple[socket.socket, Callable[[], dict[str, Any] | None]]] = []
        self._selector = selectors.DefaultSelector()
        self._ending_by: float | None = None
        self._frozen: int | None = None

    # The machine, as its services use it (localcloud.machines.services.Host).

    def root(self) -> Path:
        return self._root

    def environment(self) -> Mapping[str, str]:
        return self._spec.environment(self._root)

    def spawn(self, argv: list[str], environment: Mapping[str, str], directory: str | None, log: str) -> int:
        folder = self._root if directory is None else self._inside(directory)
        path = self._root / LOG_FOLDER / "units" / f"{log}.log"
        return processes.spawn(argv, environment, folder, path, journal=True)

    def signal(self, pid: int, name: str, *, group: bool) -> None:
        number = signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
        processes.send(pid, number, group=group)

    def _inside(self, path: str) -> Path:
        found = Path(path)
        return found if found.is_relative_to(self._root) else self._root / found.relative_to("/")

    # The loop.

    def run(self) -> int:
        """Run until the machine ends. Returns the exit code of the supervisor."""
        processes.adopt_orphans()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(self._spec.socket_name())
        listener.listen(16)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        self._selector.register(0, selectors.EVENT_READ, self._cord)
        self._start_user_data()
        while not self._is_over():
            self._step()
        self._kill_everything()
        return 0

    def _step(self) -> None:
        for key, _ in self._selector.select(self._start_timeout()):
            key.data()
        for pid, code in processes.reap():
            self._process_ended(pid, code)
        for service in self._services.values():
            service.tick()
        if self._ending_by is not None:
            self._stop_in_order()
        self._freeze_agent()
        self._answer_waiting()

    def _freeze_agent(self) -> None:
        """The fault `agent`: stop the agent's process (SIGSTOP) while the file exists."""
        agent = self._services.get(_AGENT_UNIT)
        wanted = (self._root / FAULT_FOLDER / "agent").exists()
        if agent is None or agent.main_pid is None or wanted == (self._frozen == agent.main_pid):
            return
        self.signal(agent.main_pid, "SIGSTOP" if wanted else "SIGCONT", group=True)
        self._frozen = agent.main_pid if wanted else None

    def _start_timeout(self) -> float:
        now = time.monotonic()
        times = [at for at in (service.next_deadline() for service in self._services.values()) if at is not None]
        if self._ending_by is not None:
            times.append(self._ending_by)
        return max(0.0, min([*(at - now for at in times), _IDLE_S]))

    def _is_over(self) -> bool:
        if self._ending_by is None:
            return False
        if time.monotonic() >= self._ending_by:
            return True
        return not any(service.state in _BUSY for service in self._services.values())

    def _on_signal(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self._begin_shutdown("signal")

    def _cord(self) -> None:
        found = os.read(0, 4096)
        if not found:
            # the cloud has ended, and no machine may outlive it
            self._kill_everything()
            os._exit(1)
        if b"stop" in found:
            self._begin_shutdown("the cloud")

    def _begin_shutdown(self, who: str) -> None:
        if self._ending_by is not None:
            return
        self._log(f"shutting down, asked by {who}")
        self._ending_by = time.monotonic() + _SHUTDOWN_S
        if self._user_data is not None:
            processes.send(self._user_data, signal.SIGTERM, group=True)
        self._stop_in_order()

    def _stop_in_order(self) -> None:
        """Stop units in systemd's order: the reverse of their start order."""
        services = self._services.values()
        for service in services:
            later = (
                other
                for other in services
                if other.unit.name in service.unit.before or service.unit.name in other.unit.after
            )
            if not any(other.state in _BUSY for other in later):
                service.stop()

    def _kill_everything(self) -> None:
        for _ in range(10):
            found = list(processes.children(os.getpid()))
            if not found:
                return
            for pid in found:
                processes.send(pid, signal.SIGKILL, group=False)
            time.sleep(0.02)
            list(processes.reap())

    def _process_ended(self, pid: int, code: int) -> None:
        if pid == self._user_data:
            self._user_data = None
            self._log(f"user data ended with {code}")
            return
        for service in self._services.values():
            if service.ended(pid, code):
                self._log(f"{service.unit.name}: process {pid} ended with {code}; {service.state} {service.result}")
                return

    def _start_user_data(self) -> None:
        script = self._root / _USER_DATA
        if not script.exists():
            return
        output = self._root / LOG_FOLDER / "cloud-init-output.log"
        if not script.read_bytes().startswith(b"#!"):
            self._log("user data is not run: expected a script that begins with #!")
            return
        try:
            self._user_data = processes.spawn([str(script)], self.environment(), self._root, output)
        except OSError as error:
            self._log(f"user data cannot be run: {error}")

    def _log(self, line: str) -> None:
        path = self._root / LOG_FOLDER / "machine.log"
        with path.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")

    # systemctl.

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        # only processes of this user may connect: the socket's name is visible to all
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            connection.close()
            return
        connection.settimeout(2.0)
        try:
            request = json.loads(connection.recv(_REQUEST_BYTES) or b"{}")
            until = self._obey(request)
        except (OSError, ValueError, KeyError) as error:
            until = _answer({"code": 1, "message": str(error)})
        self._waiting.append((connection, until))

    def _answer_waiting(self) -> None:
        still: list[tuple[socket.socket, Callable[[], dict[str, Any] | None]]] = []
        for connection, until in self._waiting:
            answer = until()
            if answer is None:
                still.append((connection, until))
                continue
            try:
                connection.sendall(json.dumps(answer).encode())
            except OSError as error:
                self._log(f"systemctl has disconnected before the answer {answer}: {error}")
            connection.close()
        self._waiting = still

    def _obey(self, request: Mapping[str, Any]) -> Callable[[], dict[str, Any] | None]:
        """Start a job; the returned function yields the answer when the job is done."""
        verb, name = request["verb"], request.get("unit", "")
        if verb == "poweroff":
            self._begin_shutdown("the machine itself")
            return _answer({"code": 0})
        if verb == "daemon-reload":
            return _answer({"code": 0})
        if verb == "status" and name not in self._services and not (self._root / UNIT_FOLDER / name).is_file():
            return _answer({"code": _NO_SUCH_UNIT, "unit": name, "state": "inactive", "pid": None})
        if verb == "list":
            states = {unit: str(service.state) for unit, service in self._services.items()}
            return _answer({"code": 0, "units": states})
        until = self._obey_for(self._load(name), verb, request.get("signal", "SIGTERM"))
        # --no-block: the job continues, and the caller does not wait for it
        return _answer({"code": 0}) if request.get("no_block") and verb != "restart" else until

    def _obey_for(self, service: Service, verb: str, number: str) -> Callable[[], dict[str, Any] | None]:
        match verb:
            case "start":
                service.start()
                return lambda: _started(service)
            case "restart" | "reload-or-restart":
                return self._restart(service)
            case "stop":
                service.stop()
                return lambda: _stopped(service)
            case "kill":
                service.kill(number)
            case "reset-failed":
                service.reset_failed()
            case _:
                pass
        return _answer(_status(service))

    def _restart(self, service: Service) -> Callable[[], dict[str, Any] | None]:
        service.stop()
        begun = False

        def until() -> dict[str, Any] | None:
            nonlocal begun
            if not begun:
                if _stopped(service) is None:
                    return None
                begun = True
                service.unit = parse(service.unit.name, self._unit_file(service.unit.name).read_text("utf-8"))
                service.start()
            return _started(service)

        return until

    def _unit_file(self, name: str) -> Path:
        path = self._root / UNIT_FOLDER / name
        if "/" in name or not path.is_file():
            raise UnitError(f"Unit {name} not found.")
        return path

    def _load(self, name: str) -> Service:
        unit = parse(name, self._unit_file(name).read_text("utf-8"))
        found = self._services.get(name)
        if found is None:
            found = self._services[name] = Service(unit, self, time.monotonic)
        elif found.state in (State.INACTIVE, State.FAILED):
            found.unit = unit
        return found


def _answer(answer: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: answer


def _started(service: Service) -> dict[str, Any] | None:
    if service.state in (State.ACTIVATING, State.DEACTIVATING) and service.restarts == 0:
        return None
    failed = service.state is State.FAILED
    message = f"Job for {service.unit.name} failed: {service.result}." if failed else ""
    return {**_status(service), "code": 1 if failed else 0, "message": message}


def _stopped(service: Service) -> dict[str, Any] | None:
    if service.state in (State.ACTIVE, State.ACTIVATING, State.DEACTIVATING):
        return None
    return {**_status(service), "code": 0}


def _status(service: Service) -> dict[str, Any]:
    return {
        "code": 0,
        "unit": service.unit.name,
        "state": str(service.state),
        "pid": service.main_pid,
        "result": service.result,
        "restarts": service.restarts,
    }


def main() -> int:
    """Entry point of a machine's first process."""
    parser = argparse.ArgumentParser(description="the first process of an emulated machine")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seal", action="store_true", help="make all but the root read-only (in a mount namespace)")
    options = parser.parse_args()
    spec = MachineSpec.load(options.root)
    if options.seal:
        seal(options.root, [Path(sys.prefix), Path(sys.base_prefix), Path(spec.code), Path(spec.image_commands)])
    return Supervisor(options.root, spec).run()


if __name__ == "__main__":
    sys.exit(main())
