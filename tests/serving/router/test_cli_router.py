"""`gpufleet router` on the command line: its output, the files that it writes, and its errors."""

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.errors import AppError, ErrorCode
from cli.commands import build
from cli.output import Exit
from gpufleet.settings.document import render
from serving.router.policy import RouterPolicy, parse_policy
from serving.router.render import render as configuration
from serving.router.settings import RouterSettings, written
from serving.router.topology import Topology
from tests.fixtures.router.router import document

POOLS = ({"name": "chat", "model": "models/chat"}, {"name": "chat-next", "model": "models/chat"})


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Return the path of a fleet document."""
    path = tmp_path / "fleet.json"
    path.write_text(render(document(*POOLS)))
    return path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build(), ["router", *map(str, arguments)])


def refused(*arguments: str | Path) -> AppError:
    done = call(*arguments)
    assert isinstance(done.exception, AppError), done.output
    return done.exception


def policy(fleet: Path) -> RouterPolicy:
    return parse_policy((fleet.parent / "router.json").read_bytes(), "router.json")


def test_a_canary_is_shown_planned_and_changed(fleet: Path) -> None:
    assert "chat: none" in call("canary", "chat", "--fleet", fleet).stdout
    assert refused("canary", "chat", "5", "--fleet", fleet).code is ErrorCode.WRONG_USE
    dry = call("canary", "chat", "5", "--pool", "chat-next", "--fleet", fleet)
    assert dry.exit_code == Exit.FOUND
    assert not (fleet.parent / "router.json").exists()
    assert call("canary", "chat", "5", "--pool", "chat-next", "--fleet", fleet, "--apply").exit_code == Exit.DONE
    first = policy(fleet).models["chat"].canary
    assert first is not None
    assert (first.pool, first.percent) == ("chat-next", 5)
    assert call("canary", "chat", "25", "--fleet", fleet, "--apply").exit_code == Exit.DONE
    moved = policy(fleet).models["chat"].canary
    assert moved == first.model_copy(update={"percent": 25}), "same pool, same salt: who is in stays in"
    assert "25 % of users to chat-next" in call("canary", "chat", "--fleet", fleet).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("101",), "expected 100 or less"), (("5", "--pool", "nowhere"), "does not have the pool nowhere"),
     (("5", "--salt", "a b"), "expected up to 64 letters")],
    ids=["share", "pool", "salt"],
)  # fmt: skip
def test_an_invalid_canary_is_refused(fleet: Path, arguments: tuple[str, ...], message: str) -> None:
    given = arguments if "--pool" in arguments else (*arguments, "--pool", "chat-next")
    error = refused("canary", "chat", *given, "--fleet", fleet, "--apply")
    assert error.code is ErrorCode.WRONG_USE
    assert message in str(error)
    assert not (fleet.parent / "router.json").exists()


def test_the_configuration_is_printed(fleet: Path) -> None:
    done = call("render", "--fleet", fleet, "--bind", "127.0.0.1:7777")
    assert done.exit_code == Exit.DONE
    assert "    bind 127.0.0.1:7777\n" in done.stdout
    assert "\nbackend pool_chat-next\n" in done.stdout
    assert done.stdout.startswith("# The router of test. ")


def test_an_environment_name_with_line_breaks_adds_no_configuration_lines() -> None:
    topology = Topology(environment="a\nglobal\n    user root", pools=())
    first, second, *_ = configuration(topology, RouterPolicy(), (), RouterSettings()).splitlines()
    assert (first.split(".")[0], second) == ("# The router of a global user root", "global")


@pytest.mark.skipif(
    shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None, reason="haproxy is not installed"
)
@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (500, "500ms"), (1_000, "1s"), (1_500, "1500ms"), (90_000, "90s"), (600_000, "10m")],
)
def test_times_are_written_in_the_largest_unit_that_is_exact(ms: int, text: str) -> None:
    assert written(timedelta(milliseconds=ms)) == text


def test_a_policy_is_checked_before_use(fleet: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert call("check", "--fleet", fleet, "--state", state).exit_code == Exit.DONE
    written = fleet.parent / "router.json"
    written.write_text('{"embeddings_pool": "nowhere"}')
    assert "does not have: nowhere" in str(refused("check", "--fleet", fleet, "--state", state))
    written.write_text('{"require_key": true, "require_key": false}')
    error = str(refused("check", "--fleet", fleet, "--state", state))
    assert "router.json: key 'require_key' occurs twice; remove one of them" in error
    written.write_text('{"require_keys": true}')
    assert "require_keys" in str(refused("check", "--fleet", fleet, "--state", state))
    written.write_text(json.dumps({"trusted_networks": [f"10.0.{n}.0/24" for n in range(100)]}))
    assert "too many words" in str(refused("check", "--fleet", fleet, "--state", state))


def test_a_missing_status_is_reported(tmp_path: Path) -> None:
    assert "check that `gpufleet router run` is running" in str(refused("status", "--state", tmp_path))


@pytest.mark.parametrize("problems", [[], ["fleet document: gone"]], ids=["well", "not-well"])
def test_a_status_is_shown_with_its_problems(tmp_path: Path, problems: list[str]) -> None:
    server = {"instance": "i-1", "address": "10.0.0.1", "status": "UP", "agent": "L7OK", "sessions": 2, "requests": 9}
    known = {
        "environment": "test", "bind": "127.0.0.1:8080", "at": "2026-11-21T12:00:00+00:00", "problems": problems,
        "pools": [
            {"name": "chat", "model": "chat", "servers": [server]},
            {"name": "empty", "model": "m", "servers": []},
        ],
        "held": {"empty": 3},
    }  # fmt: skip
    (tmp_path / "status.json").write_text(json.dumps(known))
    done = call("status", "--state", tmp_path)
    assert done.exit_code == (Exit.FOUND if problems else Exit.DONE)
    for text in ("i-1", "10.0.0.1", "empty: requests that wait for its first replica: 3", *problems):
        assert text in done.stdout
    assert json.loads(call("status", "--state", tmp_path, "--json").stdout) == known


def test_a_router_serves_one_fleet(fleet: Path) -> None:
    assert "one fleet, got 2" in str(refused("render", "--fleet", fleet, "--fleet", fleet))
