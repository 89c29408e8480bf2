"""Parses the parts of systemd unit files that emulated machines use."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class UnitError(ValueError):
    """A unit file that cannot be used; the message names unit, key and value."""


class Restart(StrEnum):
    """When a service that ended is started again."""

    NO = "no"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class KillMode(StrEnum):
    """The processes that get the stop signal: all, the main process first (`mixed`) or only it (`process`)."""

    CONTROL_GROUP = "control-group"
    MIXED = "mixed"
    PROCESS = "process"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One Exec line."""

    line: str
    may_fail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A service, with systemd's defaults."""

    name: str
    type: str = "simple"
    start: Sequence[Command] = ()
    start_pre: Sequence[Command] = ()
    start_post: Sequence[Command] = ()
    stop: Sequence[Command] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    environment_files: Sequence[str] = ()
    """Paths; a leading `-` means that it may be missing."""
    working_directory: str | None = None
    restart: Restart = Restart.NO
    restart_s: float = 0.1
    start_limit_burst: int = 5
    start_limit_interval_s: float = 10.0
    kill_mode: KillMode = KillMode.CONTROL_GROUP
    kill_signal: str = "SIGTERM"
    timeout_start_s: float = 90.0
    timeout_stop_s: float = 90.0
    remain_after_exit: bool = False
    success_exit_status: Sequence[str] = ()
    wanted_by: Sequence[str] = ()
    after: Sequence[str] = ()
    before: Sequence[str] = ()
    requires: Sequence[str] = ()


_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SPAN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)")


def seconds(text: str) -> float:
    """A time span: `5`, `90s`, `1min 30s`, `infinity`. Raises ValueError for others."""
    if text.strip() == "infinity":
        return float("inf")
    total, position = 0.0, 0
    for found in _SPAN.finditer(text):
        if found.start() != position or found.group(2) not in _UNITS:
            break
        total += float(found.group(1)) * _UNITS[found.group(2)]
        position = found.end()
    if not position or text[position:].strip():
        raise ValueError(f"{text!r} is not a time span like 90s or 1min 30s")
    return total


def parse(name: str, text: str) -> Unit:
    """A unit of that name. Unknown keys are skipped, as systemd does. Raises UnitError for a bad value."""
    values = _collect(text)

    def last(section: str, key: str, default: str = "") -> str:
        return (values.get((section, key)) or [default])[-1]

    def word_list(section: str, key: str) -> tuple[str, ...]:
        return tuple(word for value in values.get((section, key), []) for word in value.split())

    def span(section: str, key: str, default: float) -> float:
        found = last(section, key)
        try:
            return seconds(found) if found else default
        except ValueError as error:
            raise UnitError(f"{name}: {key}={found}: {error}") from error

    def lines(key: str) -> tuple[Command, ...]:
        return tuple(_command(value) for value in values.get(("Service", key), []))

    timeout_s = span("Service", "TimeoutSec", 90.0)
    return Unit(
        name=name,
        type=last("Service", "Type", "simple"),
        start=lines("ExecStart"),
        start_pre=lines("ExecStartPre"),
        start_post=lines("ExecStartPost"),
        stop=lines("ExecStop"),
        environment=_environment(name, values.get(("Service", "Environment"), [])),
        environment_files=tuple(values.get(("Service", "EnvironmentFile"), [])),
        working_directory=last("Service", "WorkingDirectory") or None,
        restart=_restart(name, last("Service", "Restart", "no")),
        restart_s=span("Service", "RestartSec", 0.1),
        start_limit_burst=int(last("Unit", "StartLimitBurst", "5")),
        start_limit_interval_s=span("Unit", "StartLimitIntervalSec", 10.0),
        kill_mode=_kill_mode(name, last("Service", "KillMode", "control-group")),
        kill_signal=last("Service", "KillSignal", "SIGTERM"),
        timeout_start_s=span("Service", "TimeoutStartSec", timeout_s),
        timeout_stop_s=span("Service", "TimeoutStopSec", timeout_s),
        remain_after_exit=last("Service", "RemainAfterExit", "no").lower() in ("yes", "true", "1", "on"),
        success_exit_status=word_list("Service", "SuccessExitStatus"),
        wanted_by=word_list("Install", "WantedBy"),
        after=word_list("Unit", "After"),
        before=word_list("Unit", "Before"),
        requires=word_list("Unit", "Requires"),
    )


def _collect(text: str) -> dict[tuple[str, str], list[str]]:
    """Values by section and key; an empty value removes the earlier ones."""
    found: dict[tuple[str, str], list[str]] = {}
    section = ""
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if not equals:
            continue
        values = found.setdefault((section, key.strip()), [])
        if value.strip():
            values.append(value.strip())
        else:
            values.clear()
    return found


def _command(value: str) -> Command:
    marks = value[: len(value) - len(value.lstrip("-+@!:"))]
    return Command(line=value[len(marks) :].strip(), may_fail="-" in marks)


def _environment(name: str, values: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        for word in shlex.split(value):
            key, equals, content = word.partition("=")
            if not equals:
                raise UnitError(f"{name}: Environment={value}: {word!r} is not NAME=VALUE")
            found[key] = content
    return found


def _restart(name: str, value: str) -> Restart:
    # here these kinds are equal to on-failure
    if value in ("on-abnormal", "on-abort", "on-watchdog"):
        return Restart.ON_FAILURE
    try:
        return Restart(value)
    except ValueError as error:
        raise UnitError(f"{name}: Restart={value}: choose no, on-failure or always") from error


def _kill_mode(name: str, value: str) -> KillMode:
    try:
        return KillMode(value)
    except ValueError as error:
        raise UnitError(f"{name}: KillMode={value}: choose control-group, mixed, process or none") from error


def environment_file(text: str) -> dict[str, str]:
    """NAME=VALUE lines of an EnvironmentFile."""
    found: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.strip()
        key, equals, value = line.partition("=")
        if line and line[0] not in "#;" and equals:
            value = value.strip()
            found[key.strip()] = (
                value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
            )
    return found


_ESCAPE: Final = re.compile(r"\\(.)")
_VARIABLE: Final = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")


def arguments(line: str, environment: Mapping[str, str]) -> list[str]:
    """The arguments of an Exec line: `${NAME}` inside one, `$NAME` split into several, `$$` and `%%` escaped."""
    word_list: list[str] = []
    for word in shlex.split(_ESCAPE.sub(_line_break, line)):
        whole = re.fullmatch(r"\$([A-Za-z_]\w*)", word)
        if whole:
            word_list.extend(environment.get(whole.group(1), "").split())
            continue
        word_list.append(_VARIABLE.sub(lambda found: _value(found, environment), word).replace("%%", "%"))
    return word_list


def _line_break(found: re.Match[str]) -> str:
    return "\n" if found.group(1) == "n" else found.group(0)


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    if found.group(0) == "$$":
        return "$"
    return environment.get(found.group(1) or found.group(2), "")
