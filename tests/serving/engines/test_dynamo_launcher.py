"""The launcher of Dynamo runs a frontend and a worker as real processes. Here they are modules that record events."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest

from serving.engines.dynamo import LAUNCH
from serving.engines.launch import EngineServer
from tests.fixtures.vllm.servers import until

MODULE: Final = """
import json, os, pathlib, signal, sys, time

folder = pathlib.Path(os.environ["RECORDS"])
name = pathlib.Path(__file__).stem


def record(event):
    with (folder / "events").open("a") as file:
        file.write(f"{name} {event}\\n")


def stop(*_):
    record("SIGTERM")
    if not (folder / f"{name}.hangs").exists():
        record("ends")
        sys.exit(0)


signal.signal(signal.SIGTERM, stop)
dyn = {key: value for key, value in os.environ.items() if key.startswith(("DYN_", "NATS_"))}
(folder / f"{name}.json").write_text(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:], "variables": dyn}))
record("starts")
while True:
    time.sleep(60)
"""
"""A module that runs until SIGTERM; with a file NAME.hangs it ignores SIGTERM."""


class Running:
    """A launcher and its two modules."""

    def __init__(self, folder: Path, limit_s: int) -> None:
        self.folder = folder
        package = folder / "dynamo"
        package.mkdir()
        for name in ("__init__", "frontend", "vllm"):
            (package / f"{name}.py").write_text("" if name == "__init__" else MODULE)
        server = EngineServer(
            model_path=PurePosixPath("/models/chat"),
            served_name="chat",
            host="127.0.0.1",
            port=8001,
            shutdown_timeout_s=limit_s,
            args=("--max-model-len", "2048"),
        )
        given = {"PYTHONPATH": str(folder), "RECORDS": str(folder), "DYN_SYSTEM_PORT": "9", "NATS_SERVER": "nats://x"}
        self.process = subprocess.Popen(
            [sys.executable, *LAUNCH.arguments(server)],
            env={**os.environ, **given},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        until("both processes", lambda: {"frontend starts", "vllm starts"} <= set(self.events))

    @property
    def events(self) -> list[str]:
        file = self.folder / "events"
        return file.read_text().splitlines() if file.is_file() else []

    def report(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.json").read_text())

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Running]]:
    started: list[Running] = []

    def run(limit_s: int) -> Running:
        started.append(Running(tmp_path, limit_s))
        return started[-1]

    yield run
    for each in started:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        with each.process:
            each.process.wait(timeout=60)


def test_both_start_with_their_arguments_and_only_the_launchers_variables(start: Callable[[int], Running]) -> None:
    running = start(90)
    frontend, worker = running.report("frontend"), running.report("vllm")
    assert frontend["arguments"] == ["--http-host", "127.0.0.1", "--http-port", "8001"]
    assert worker["arguments"][:4] == ["--model", "/models/chat", "--served-model-name", "chat"]
    assert worker["arguments"][-2:] == ["--max-model-len", "2048"]
    for variables in (frontend["variables"], worker["variables"]):
        assert "NATS_SERVER" not in variables
        assert variables["DYN_SYSTEM_PORT"] == "-1", "the worker's own server, without a key, stays off"
        assert variables["DYN_DISCOVERY_BACKEND"] == "file"
        assert {variables[f"DYN_{name}_HOST"] for name in ("TCP_RPC", "TCP_RESPONSE_STREAM", "EVENT_PLANE")} == {
            "127.0.0.1"
        }


def test_after_sigterm_the_frontend_ends_before_the_worker_that_its_requests_need(
    start: Callable[[int], Running],
) -> None:
    running = start(90)
    running.process.terminate()
    assert running.end()[0] == 0
    assert running.events[2:] == ["frontend SIGTERM", "frontend ends", "vllm SIGTERM", "vllm ends"]


@pytest.mark.parametrize("dies", ["frontend", "vllm"])
def test_when_one_dies_the_other_ends_and_the_container_fails(start: Callable[[int], Running], dies: str) -> None:
    other = {"frontend": "vllm", "vllm": "frontend"}[dies]
    running = start(90)
    os.kill(running.report(dies)["pid"], signal.SIGKILL)
    code, errors = running.end()
    assert code == 1, "systemd restarts a unit that fails"
    assert f"dynamo.{dies} ended: -9" in errors
    assert running.events[2:] == [f"{other} SIGTERM", f"{other} ends"]


def test_a_frontend_that_does_not_finish_is_ended_at_the_time_limit(start: Callable[[int], Running]) -> None:
    running = start(1)
    (running.folder / "frontend.hangs").touch()
    running.process.terminate()
    code, errors = running.end()
    assert code == 0
    assert "dynamo.frontend ended: -9" in errors
    assert "dynamo.vllm ended: -9" in errors
