"""Unit files and the lifecycle of services on emulated machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localcloud.machines.services import Service, State
from localcloud.machines.units import KillMode, Restart, UnitError, arguments, environment_file, parse, seconds

from serving import unit_files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("5", 5, id="bare"),
        pytest.param("90s", 90, id="seconds"),
        pytest.param("1min 30s", 90, id="two parts"),
        pytest.param("200ms", 0.2, id="milliseconds"),
        pytest.param("infinity", float("inf"), id="for ever"),
    ],
)
def test_time_span_is_parsed(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-3", "1min x"])
def test_invalid_time_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time span"):
        seconds(text)


_UNIT = """\
[Unit]
StartLimitBurst=4
StartLimitIntervalSec=600
After=network-online.target docker.service

[Service]
Type=exec
# a comment
Environment=ONE=1 "TWO=with space"
EnvironmentFile=-/etc/gpu-fleet/engine.env
ExecStartPre=-docker rm --force x
ExecStart=docker run \\
  --name=x image
Restart=on-failure
RestartSec=5
KillMode=mixed
KillSignal=SIGINT
TimeoutStopSec=1min 45s

[Install]
WantedBy=multi-user.target
"""


def test_unit_is_parsed_with_its_limits() -> None:
    unit = parse("x.service", _UNIT)
    assert [command.line.split() for command in unit.start] == [["docker", "run", "--name=x", "image"]]
    assert [(command.line, command.may_fail) for command in unit.start_pre] == [("docker rm --force x", True)]
    assert unit.environment == {"ONE": "1", "TWO": "with space"}
    assert unit.environment_files == ("-/etc/gpu-fleet/engine.env",)
    assert (unit.restart, unit.restart_s, unit.start_limit_burst) == (Restart.ON_FAILURE, 5, 4)
    assert (unit.kill_mode, unit.kill_signal, unit.timeout_stop_s) == (KillMode.MIXED, "SIGINT", 105)
    assert unit.wanted_by == ("multi-user.target",)


def test_empty_value_resets_earlier_ones() -> None:
    unit = parse("x.service", "[Service]\nExecStart=one\nExecStart=\nExecStart=two\n")
    assert [command.line for command in unit.start] == ["two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("Restart=sometimes", "Restart=sometimes", id="restart"),
        pytest.param("KillMode=politely", "KillMode=politely", id="kill mode"),
        pytest.param("TimeoutStopSec=soon", "TimeoutStopSec=soon", id="time span"),
        pytest.param("Environment=NAME", "not NAME=VALUE", id="environment"),
    ],
)
def test_invalid_value_is_named_in_the_error(line: str, message: str) -> None:
    with pytest.raises(UnitError, match=message):
        parse("x.service", f"[Service]\n{line}\n")


def test_exec_lines_expand_as_in_systemd() -> None:
    environment = {"NAME": "a b", "ONE": "1"}
    assert arguments('run "$NAME" ${NAME} $NAME x${ONE} 50%% $$HOME "q\\"q"', environment) == [
        "run",
        "a",
        "b",
        "a b",
        "a",
        "b",
        "x1",
        "50%",
        "$HOME",
        'q"q',
    ]


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=12), min_size=1))
def test_quoted_arguments_of_the_engine_unit_are_restored(parts: list[str]) -> None:
    line = " ".join(unit_files.quote(word) for word in parts)
    assert arguments(line, {}) == parts


def test_environment_files_may_have_comments_and_quotes() -> None:
    assert environment_file('# c\nA=1\n\nB="x y"\nnothing\n') == {"A": "1", "B": "x y"}


@dataclass(slots=True)
class FakeHost:
    """A host that runs no processes."""

    folder: Path
    spawned: list[list[str]] = field(default_factory=list[list[str]])
    signals: list[tuple[int, str, bool]] = field(default_factory=list[tuple[int, str, bool]])
    broken: bool = False

    def spawn(self, argv: list[str], environment: Mapping[str, str], directory: str | None, log: str) -> int:
        if self.broken:
            raise FileNotFoundError(2, "no such program")
        self.spawned.append(argv)
        return 100 + len(self.spawned)

    def signal(self, pid: int, name: str, *, group: bool) -> None:
        self.signals.append((pid, name, group))

    def root(self) -> Path:
        return self.folder

    def environment(self) -> Mapping[str, str]:
        return {"PATH": "/bin"}


@dataclass(slots=True)
class Clock:
    """A clock that a test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def _service(tmp_path: Path, *lines: str, unit: str = "") -> tuple[Service, FakeHost, Clock]:
    host, clock = FakeHost(tmp_path), Clock()
    text = f"[Unit]\n{unit}\n[Service]\nExecStart=main\n" + "\n".join(lines)
    return Service(parse("x.service", text), host, clock), host, clock


def test_service_starts_after_its_start_pre_commands(tmp_path: Path) -> None:
    service, host, _ = _service(tmp_path, "ExecStartPre=prepare")
    service.start()
    assert (service.state, host.spawned) == (State.ACTIVATING, [["prepare"]])
    assert service.ended(101, 0)
    assert (service.state, service.main_pid) == (State.ACTIVE, 102)


@pytest.mark.parametrize(
    ("line", "state"), [("ExecStartPre=prepare", State.FAILED), ("ExecStartPre=-prepare", State.ACTIVE)]
)
def test_failed_start_pre_command_stops_the_start_unless_it_may_fail(tmp_path: Path, line: str, state: State) -> None:
    service, _, _ = _service(tmp_path, line)
    service.start()
    service.ended(101, 1)
    assert service.state is state


def test_missing_program_fails_the_start(tmp_path: Path) -> None:
    service, host, _ = _service(tmp_path)
    host.broken = True
    service.start()
    assert service.state is State.FAILED
    assert "no such program" in service.result


def test_failed_service_is_restarted_until_its_limit(tmp_path: Path) -> None:
    service, host, clock = _service(
        tmp_path, "Restart=on-failure", "RestartSec=5", unit="StartLimitBurst=2\nStartLimitIntervalSec=60"
    )
    service.start()
    service.ended(101, 1)
    assert service.state is State.ACTIVATING
    clock.now = 4.9
    service.tick()
    assert len(host.spawned) == 1
    clock.now = 5.0
    service.tick()
    assert (len(host.spawned), service.state) == (2, State.ACTIVE)
    service.ended(102, 1)
    clock.now = 10.0
    service.tick()
    assert (service.state, service.result) == (State.FAILED, "start-limit-hit")
    service.reset_failed()
    service.start()
    assert service.state is State.ACTIVE


def test_clean_exit_is_not_a_failure(tmp_path: Path) -> None:
    service, _, _ = _service(tmp_path, "Restart=on-failure")
    service.start()
    service.ended(101, -15)
    assert service.state is State.INACTIVE


@pytest.mark.parametrize(("mode", "group"), [("mixed", False), ("control-group", True), ("process", False)])
def test_stop_signals_processes_by_kill_mode_and_kills_after_the_limit(
    tmp_path: Path, mode: str, group: bool
) -> None:
    service, host, clock = _service(tmp_path, f"KillMode={mode}", "TimeoutStopSec=7", "Restart=always")
    service.start()
    service.stop()
    assert (service.state, host.signals) == (State.DEACTIVATING, [(101, "SIGTERM", group)])
    clock.now = 7.0
    service.tick()
    assert host.signals[-1] == (101, "SIGKILL", True)
    service.ended(101, -9)
    assert (service.state, service.result) == (State.FAILED, "timeout")
    clock.now = 1000.0
    service.tick()
    assert len(host.spawned) == 1, "what was stopped is not restarted"


def test_remaining_processes_end_with_the_main_process(tmp_path: Path) -> None:
    service, host, _ = _service(tmp_path, "KillMode=mixed")
    service.start()
    service.ended(101, 0)
    assert (101, "SIGKILL", True) in host.signals


def test_reset_failed_does_not_affect_a_running_service(tmp_path: Path) -> None:
    service, host, _ = _service(tmp_path)
    service.start()
    service.reset_failed()
    assert (service.state, host.signals) == (State.ACTIVE, [])


def test_environment_file_is_read_below_the_root_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x.env").write_text("WORD=hello\n", "utf-8")
    text = "[Service]\nEnvironmentFile=/etc/x.env\nExecStart=echo ${WORD}\n"
    host = FakeHost(tmp_path)
    service = Service(parse("x.service", text), host, Clock())
    service.start()
    assert host.spawned == [["echo", "hello"]]


def test_missing_environment_file_fails_the_start(tmp_path: Path) -> None:
    service, _, _ = _service(tmp_path, "EnvironmentFile=/etc/missing")
    service.start()
    assert service.state is State.FAILED
    assert "/etc/missing" in service.result
