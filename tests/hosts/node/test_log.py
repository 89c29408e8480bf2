"""The agent's log: the fields of docs/logs.md, and no secret."""

import json
from contextlib import closing, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.domain import orders
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from gpufleet.domain.orders import AgentOrder, Drain
from gpufleet.logs import HIDDEN, LineLog, LogFormat, hide_variables
from hosts.node import server
from hosts.node.log import timed
from hosts.node.ports import CloudNotice, Notice, StepError, StoppedError, UnitState
from serving import engine_container
from tests.fixtures import signing
from tests.fixtures.node.fake_node import START, Machine
from tests.fixtures.secrets import IN_VARIABLES, PLANTED, check
from tests.fixtures.signing import ENGINE_KEY as KEY


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Machine:
    return Machine(root=tmp_path, bucket=bucket)


def lines(machine: Machine, event: str = "") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in machine.lines]
    return [line for line in found if event in ("", line["event"])]


def outcomes(machine: Machine, event: str) -> list[str]:
    return [line["outcome"] for line in lines(machine, event)]


def test_every_line_has_time_event_and_resource(machine: Machine) -> None:
    machine.boot.run()
    machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand, ana: kernel", timedelta(seconds=60))
    machine.pass_time(timedelta(seconds=10))
    for line in lines(machine):
        assert list(line)[:4] == ["time", "level", "component", "event"]
        assert line["time"].startswith("2026-11-21T02:00:") and line["time"].endswith("Z")
        assert (line["component"], line["fleet"]) == ("node", "aws/test/us-east-1")
        assert (line["pool"], line["resource"]) == ("chat", "i-0123456789abcdef0")
        assert line["level"] == ("warning" if line["event"] == "problem" else "info")
        assert isinstance(line["outcome"], str)
        assert None not in line.values()


def test_a_boot_has_a_line_for_each_step_and_for_the_cache(machine: Machine) -> None:
    machine.disks.failures = 1
    machine.boot.run()
    steps = lines(machine, "boot_step")
    assert [(s["step"], s["outcome"], s["attempts"]) for s in steps] == [
        ("disks", "done", 2),
        ("cache", "done", 1),
        ("engine", "done", 1),
        ("warm-up", "done", 1),
    ]
    assert all(step["duration_s"] >= 0 for step in steps)
    (cache,) = lines(machine, "cache")
    assert (cache["outcome"], cache["digest"]) == ("done", machine.state.digest)
    assert cache["bytes_fetched"] == machine.state.counters.bytes_fetched > 0
    assert outcomes(machine, "engine") == ["started"]
    assert outcomes(machine, "phase") == ["disks", "cache", "engine", "warm-up", "ready"]


def test_a_failed_or_stopped_boot_is_logged(machine: Machine, bucket: Path, tmp_path: Path) -> None:
    machine.disks.failures = 99
    machine.boot.run()
    (step,) = lines(machine, "boot_step")
    assert (step["level"], step["outcome"]) == ("error", "failed") and "no such device" in step["error"]
    last = lines(machine, "phase")[-1]
    assert (last["level"], last["outcome"]) == ("error", "failed") and "no such device" in last["error"]
    other = Machine(root=tmp_path / "other", bucket=bucket)
    other.boot.services.sleep = lambda _: other.agent.ask_to_drain(DrainOwner.IDLE, "x", timedelta(0)) and None
    other.disks.failures = 1
    other.boot.run()
    assert outcomes(other, "boot_step") == ["stopped"]


def test_a_drain_is_logged_with_its_owner_and_outcome(machine: Machine) -> None:
    machine.boot.run()
    machine.agent.ask_to_drain(DrainOwner.IDLE, "idle: no request", timedelta(minutes=10))
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=START + timedelta(seconds=60))]
    machine.pass_time(timedelta(seconds=20))
    first, notice, finished = lines(machine, "drain")
    assert (first["outcome"], first["by"], first["asked_by"]) == ("accepted", "idle", "idle")
    assert first["deadline"] == "2026-11-21T02:10:00.000Z" and "notice_at" not in first
    assert (notice["outcome"], notice["by"], notice["asked_by"]) == ("accepted", "idle", "cloud")
    assert notice["notice_at"] == "2026-11-21T02:00:00.000Z"
    assert (finished["outcome"], finished["by"]) == ("finished", "idle")
    assert (finished["deadline"], finished["requests_cut"]) == ("2026-11-21T02:01:00.000Z", 0)
    assert 0 < finished["duration_s"] < 20
    assert outcomes(machine, "engine")[-1] == "stopping"


def test_a_problem_is_logged_when_it_begins_and_ends(machine: Machine) -> None:
    for error in ("no key", "no key", "no answer", None, None):
        machine.state.warn("revision", error)
    assert [(one["outcome"], one.get("error")) for one in lines(machine, "problem")] == [
        ("begun", "no key"),
        ("begun", "no answer"),
        ("over", None),
    ]
    assert {one["part"] for one in lines(machine, "problem")} == {"revision"}


def test_a_crash_and_recovery_of_the_engine_are_logged(machine: Machine) -> None:
    machine.boot.run()
    machine.units.states[engine_container.UNIT] = UnitState.FAILED
    machine.pass_time(timedelta(seconds=5))
    assert outcomes(machine, "engine") == ["started", "unhealthy", "crashed", "started", "healthy"]


def test_a_kill_of_a_hanging_engine_is_logged(machine: Machine) -> None:
    machine.boot.run()
    machine.units.on_stop = lambda _name: UnitState.DEACTIVATING
    machine.agent.ask_to_drain(DrainOwner.SPOT, "spot: x", timedelta(seconds=20))
    machine.pass_time(timedelta(seconds=30))
    assert outcomes(machine, "engine")[-2:] == ["stopping", "killed"]
    assert machine.state.phase is Phase.DRAINED


class Served:
    """The agent's API on a free port."""

    def __init__(self, machine: Machine) -> None:
        self._servers = server.serve(
            machine.state,
            address="127.0.0.1",
            checked=machine.orders,
            ask=machine.agent.ask_to_drain,
            switch=machine.switch.ask,
            ports=(0, 0),
        )
        self.url = f"http://127.0.0.1:{self._servers[0].server_address[1]}"

    def close(self) -> None:
        for one in self._servers:
            one.stop()


def test_lines_contain_refusals_and_no_secrets(machine: Machine) -> None:
    """Secrets are planted in all external text: requests, reasons, errors of the engine and of programs."""
    machine.boot.run()
    planted = f"token {KEY}"
    asked = AgentOrder(
        instance=machine.cloud.instance_id,
        action=Drain(by=DrainOwner.PERSON, reason=planted, deadline=timedelta(seconds=60)),
        at=machine.clock(),
        nonce="0" * 32,
    )
    signed = orders.body(asked)
    nonsense = signed.replace(b'"person"', json.dumps(planted).encode())
    with closing(Served(machine)) as served:

        def post(body: bytes, authorization: str, path: str = orders.PATH) -> httpx.Response:
            return httpx.post(
                f"{served.url}{path}", content=body, headers={"Authorization": authorization}, timeout=60
            )

        def header(body: bytes) -> str:
            return orders.header(signing.key().sign(body))

        answers = [
            httpx.get(f"{served.url}/{KEY}?token={KEY}", timeout=60),
            post(signed, f"Bearer {KEY}", f"{orders.PATH}?key={KEY}"),
            post(signed, header(nonsense)),
            post(nonsense, header(nonsense)),
            post(signed, header(signed)),
        ]
    other = "AKIA" + "ABCDEFGHIJKLMNOP"
    machine.state.enter(Phase.DRAINED, f"Authorization: Bearer {KEY}, {other}")
    assert [answer.status_code for answer in answers] == [404, 401, 401, 400, 202]
    refused = [line for line in lines(machine) if line["outcome"] == "refused"]
    logged = [
        (one["level"], one["event"], one.get("code"), one["method"], one["path"], one["status"]) for one in refused
    ]
    assert logged == [
        ("warning", "request", None, "GET", f"/{HIDDEN}", 404),
        ("warning", "order", "unsigned", "POST", orders.PATH, 401),
        ("warning", "order", "bad_signature", "POST", orders.PATH, 401),
        ("warning", "order", "malformed", "POST", orders.PATH, 400),
    ]
    assert f"by: is 'token {HIDDEN}'" in refused[3]["error"]
    assert lines(machine, "drain")[-1]["detail"] == f"token {HIDDEN}"
    assert lines(machine, "phase")[-1]["error"] == f"Authorization: Bearer {HIDDEN}, [an AWS access key]"
    written = "\n".join(machine.lines)
    assert not any(secret in written for secret in (KEY, other))


def test_a_block_is_timed_for_each_outcome() -> None:
    written: list[str] = []
    log = LineLog(component="node", now=lambda: START, write=written.append)
    for error in (None, StepError("no"), StoppedError(), KeyError()):
        with nullcontext() if error is None else pytest.raises(type(error)), timed(log, "x", step="s") as line:
            line["attempts"] = 1
            if error is not None:
                raise error
    found = [json.loads(line) for line in written]
    assert [(one["level"], one["outcome"], one.get("error")) for one in found] == [
        ("info", "done", None),
        ("error", "failed", "no"),
        ("info", "stopped", None),
        ("error", "failed", "KeyError()"),
    ]
    assert all((one["step"], one["attempts"]) == ("s", 1) and one["duration_s"] >= 0 for one in found)


@pytest.mark.parametrize("form", LogFormat)
def test_planted_secrets_are_in_no_line(form: LogFormat, bucket: Path, tmp_path: Path) -> None:
    hide_variables(IN_VARIABLES)
    machine = Machine(root=tmp_path, bucket=bucket, form=form)
    machine.state.warn("disks", PLANTED)
    machine.agent.ask_to_drain(DrainOwner.PERSON, PLANTED, timedelta(seconds=60))
    second = Machine(root=tmp_path / "second", bucket=bucket, form=form)

    def refuse(_: str) -> UnitState:
        raise StepError(PLANTED)

    second.units.on_start = refuse
    second.boot.run()
    check("\n".join([*machine.lines, *second.lines]), form, 4)
