"""`docker` of an emulated machine: each known image name runs a local program, on the host's network."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from localcloud.machines.image import this_machine
from localcloud.machines.units import environment_file

PROGRAMS: Final = {
    "simulated-engine": "localcloud.engine",
    "vllm-cpu": "localcloud.vllm",
    "sglang-cpu": "localcloud.sglang",
    "dcgm-exporter": "localcloud.exporters.nvidia",
    "device-metrics-exporter": "localcloud.exporters.amd",
    "neuron-monitor": "localcloud.exporters.neuron",
    "tpu-device-plugin": "localcloud.exporters.gke_tpu",
    "node-exporter": "localcloud.node_exporter",
}
"""Part of the image's name -> the module that runs."""
BINARIES: Final = {"haproxy": "haproxy"}
"""Part of the image's name -> the program of this computer that runs."""

_SWITCHES: Final = frozenset(
    {"--rm", "-d", "--detach", "-i", "-t", "-it", "--interactive", "--tty", "--init", "--privileged", "--read-only"}
)
_CONTAINERS: Final = "run/docker"


class UsageError(ValueError):
    """An invalid command line."""


@dataclass(slots=True)
class Run:
    """The options of `docker run`."""

    image: str = ""
    arguments: list[str] = field(default_factory=list[str])
    name: str | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])
    environment_files: list[str] = field(default_factory=list[str])
    volumes: dict[str, str] = field(default_factory=dict[str, str])
    """Path in the container -> path on the machine."""


def parse_run(arguments: list[str], environment: Mapping[str, str]) -> Run:
    """Parse the arguments of `docker run`. Raises UsageError."""
    run, position = Run(), 0
    while position < len(arguments) and arguments[position].startswith("-"):
        argument = arguments[position]
        position += 1
        if argument in _SWITCHES:
            continue
        flag, equals, value = argument.partition("=")
        if not (equals and flag.startswith("--")):
            if position >= len(arguments):
                raise UsageError(f"flag needs an argument: {argument}")
            flag, value = argument, arguments[position]
            position += 1
        _take(run, flag, value, environment)
    if position >= len(arguments):
        raise UsageError('"docker run" requires at least 1 argument: IMAGE')
    run.image, run.arguments = arguments[position], arguments[position + 1 :]
    return run


def _take(run: Run, flag: str, value: str, environment: Mapping[str, str]) -> None:
    if flag == "--name":
        run.name = value
    elif flag in ("-e", "--env"):
        key, equals, content = value.partition("=")
        if equals or key in environment:
            run.environment[key] = content if equals else environment[key]
    elif flag == "--env-file":
        run.environment_files.append(value)
    elif flag in ("-v", "--volume"):
        source, _, target = value.partition(":")
        run.volumes[target.partition(":")[0]] = source
    elif flag == "--mount":
        parts = {part.partition("=")[0]: part.partition("=")[2] for part in value.split(",")}
        target = parts.get("target") or parts.get("dst") or parts.get("destination")
        source = parts.get("source") or parts.get("src")
        if target and source:
            run.volumes[target] = source
    elif not flag.startswith("-"):
        raise UsageError(f"unknown flag: {flag}")


def program(image: str) -> list[str]:
    """The command of an image. Raises UsageError for an unknown one, and for a program that is not installed."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    for known, module in PROGRAMS.items():
        if known in name:
            return [sys.executable, "-P", "-m", module]
    for known, binary in BINARIES.items():
        if known in name:
            path = shutil.which(binary) or shutil.which(binary, path="/usr/sbin:/usr/local/sbin")
            if path is None:
                raise UsageError(f"image '{image}': {binary} is not installed: `apt-get install {binary}`")
            return [path]
    known_names = ", ".join(sorted(PROGRAMS | BINARIES))
    raise UsageError(f"Unable to find image '{image}' locally: an emulated machine knows {known_names}")


def command(run: Run, root: Path) -> list[str]:
    """The command that runs in place of the container: paths of volumes become paths of the machine."""
    translated = [_translate(argument, run.volumes, root) for argument in run.arguments]
    return [*program(run.image), *translated]


def _translate(argument: str, volumes: Mapping[str, str], root: Path) -> str:
    flag, equals, value = argument.partition("=")
    path = value if equals and flag.startswith("-") else argument
    for target, source in sorted(volumes.items(), key=lambda pair: -len(pair[0])):
        if path == target or path.startswith(f"{target.rstrip('/')}/"):
            host = Path(source) if Path(source).is_relative_to(root) else root / source.lstrip("/")
            found = str(host) + path[len(target.rstrip("/")) :]
            return f"{flag}={found}" if path is not argument else found
    return argument


def _run(arguments: list[str]) -> int:
    root = this_machine.root()
    run = parse_run(arguments, os.environ)
    argv = command(run, root)
    environment = dict(os.environ)
    for path in run.environment_files:
        environment.update(environment_file(this_machine.inside(path).read_text("utf-8")))
    environment.update(run.environment)
    environment["PYTHONPATH"] = this_machine.spec().code
    if run.name:
        _note(root, run.name)
    os.execve(argv[0], argv, environment)  # noqa: S606 - the pid must stay: the unit watches it


def _note(root: Path, name: str) -> None:
    folder = root / _CONTAINERS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}), "utf-8")


def _pid(name: str) -> int | None:
    """The process of a running container, or None."""
    try:
        noted = json.loads((this_machine.root() / _CONTAINERS / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    pid = int(noted["pid"])
    return pid if _started(pid) == noted["started"] else None


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end(arguments: list[str], number: int) -> int:
    timeout_s, names = 10.0, list[str]()
    arguments = list(arguments)
    while arguments:
        argument = arguments.pop(0)
        if argument in ("-t", "--time", "--timeout") and arguments:
            timeout_s = float(arguments.pop(0))
        elif argument in ("-s", "--signal") and arguments:
            given = arguments.pop(0)
            number = signal.Signals[given if given.startswith("SIG") else f"SIG{given}"]
        elif argument not in ("-f", "--force"):
            names.append(argument)
    return max((_end_one(name, number, timeout_s) for name in names), default=1)


def _end_one(name: str, number: int, timeout_s: float) -> int:
    pid = _pid(name)
    if pid is None:
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    limit = time.monotonic() + timeout_s
    while _pid(name) == pid and number != signal.SIGKILL:
        if time.monotonic() > limit:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    print(name)
    return 0


def _inspect(names: list[str]) -> int:
    found = [
        {"Name": f"/{name}", "State": {"Running": _pid(name) is not None, "Pid": _pid(name) or 0}} for name in names
    ]
    print(json.dumps(found, indent=1))
    return 0


def _list() -> int:
    for path in sorted((this_machine.root() / _CONTAINERS).glob("*.json")):
        if _pid(path.stem) is not None:
            print(path.stem)
    return 0


def main(arguments: list[str]) -> int:
    """`docker run|stop|kill|rm|ps|inspect|pull|image`."""
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("ps", [])
    try:
        match verb:
            case "run":
                return _run(rest)
            case "stop":
                return _end(rest, signal.SIGTERM)
            case "kill" | "rm":
                return _end(rest, signal.SIGKILL)
            case "ps":
                return _list()
            case "inspect":
                return _inspect([argument for argument in rest if not argument.startswith("-")])
            case "pull":
                program(rest[-1])
                return 0
            case "login" | "image" | "load" | "version" | "info":
                return 0
            case _:
                raise UsageError(f"docker: '{verb}' is not a docker command on this emulated machine")
    except UsageError as error:
        this_machine.fail(f"docker: {error}", 125)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
