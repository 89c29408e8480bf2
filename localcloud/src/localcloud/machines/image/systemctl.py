"""`systemctl` of an emulated machine: asks the machine's supervisor."""

import json
import socket
import sys
from typing import Any, Final

from localcloud.machines.image import this_machine
from localcloud.machines.spec import UNIT_FOLDER

_WAIT_S: Final = 120.0
_INACTIVE: Final = 3
_VERBS: Final = ("start", "stop", "restart", "reload-or-restart", "kill", "reset-failed")
_WANTS: Final = "multi-user.target.wants"


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """One request to the supervisor of this machine. Ends the command when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_WAIT_S)
        try:
            connection.connect(this_machine.spec().socket_name())
            connection.sendall(json.dumps(request).encode())
            found = b""
            while chunk := connection.recv(65536):
                found += chunk
        except OSError as error:
            this_machine.fail(f"the machine's supervisor does not answer: {error}")
    return json.loads(found or b'{"code": 1, "message": "no answer from the supervisor"}')


def main(arguments: list[str]) -> int:
    """`systemctl [--now] [--quiet] VERB [UNIT…]`."""
    flags = {word for word in arguments if word.startswith("-")}
    signal = next((word.partition("=")[2] for word in flags if word.startswith("--signal=")), "SIGTERM")
    positional = [word for word in arguments if not word.startswith("-")]
    if not positional:
        positional = ["list-units"]
    verb, units = positional[0], [_full(name) for name in positional[1:]]
    if verb == "daemon-reload":
        return int(ask({"verb": "daemon-reload"})["code"])
    if verb in ("poweroff", "halt"):
        return int(ask({"verb": "poweroff"})["code"])
    if verb == "list-units":
        for name, state in sorted(ask({"verb": "list"})["units"].items()):
            print(f"{name} {state}")
        return 0
    if not units:
        this_machine.fail("Too few arguments.")
    return max(_one(verb, unit, flags, signal) for unit in units)


def _one(verb: str, unit: str, flags: set[str], signal: str) -> int:
    if verb in ("enable", "disable"):
        _enable(unit, verb == "enable")
        if "--now" not in flags:
            return 0
        verb = "start" if verb == "enable" else "stop"
    if verb in ("is-active", "is-failed", "status", "show"):
        return _print_status(verb, unit, flags)
    if verb == "is-enabled":
        wanted = (this_machine.root() / UNIT_FOLDER / _WANTS / unit).exists()
        print("enabled" if wanted else "disabled")
        return 0 if wanted else 1
    if verb not in _VERBS:
        this_machine.fail(f"Unknown command verb {verb!r} on this emulated machine.")
    answer = ask({"verb": verb, "unit": unit, "signal": signal, "no_block": "--no-block" in flags})
    if answer.get("message"):
        print(answer["message"], file=sys.stderr)
    return int(answer["code"])


def _print_status(verb: str, unit: str, flags: set[str]) -> int:
    answer = ask({"verb": "status", "unit": unit})
    state = answer.get("state", "unknown")
    if verb == "show":
        print(f"ActiveState={state}\nMainPID={answer.get('pid') or 0}\nResult={answer.get('result') or 'success'}")
        print(f"NRestarts={answer.get('restarts', 0)}")
        return 0
    if "--quiet" not in flags and "-q" not in flags:
        print(f"{unit}: {state} (pid {answer.get('pid')})" if verb == "status" else state)
    if verb == "is-failed":
        return 0 if state == "failed" else 1
    return 0 if state == "active" else int(answer["code"]) or _INACTIVE


def _enable(unit: str, wanted: bool) -> None:
    folder = this_machine.root() / UNIT_FOLDER
    if not (folder / unit).is_file():
        this_machine.fail(f"Failed to enable unit: Unit file {unit} does not exist.")
    link = folder / _WANTS / unit
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    if wanted:
        link.symlink_to(f"../{unit}")


def _full(name: str) -> str:
    return name if "." in name else f"{name}.service"


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
