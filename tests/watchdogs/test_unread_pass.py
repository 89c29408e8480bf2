"""A pass whose output is closed (`| head`, `2>&1 | head`, a full disk): it continues and records its actions."""

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.passes import Options, WatchdogKind
from cli.output import STDERR, Exit, print_json
from cli.watch_pass import Show, over_fleets
from gpufleet.ledger import operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.digests import DIGEST
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.plain import document
from watchdogs.idle.watchdog import IdleWatchdog

LOST = {"gone": "", "full": "gpufleet: the result could not be printed: [Errno 28] No space left on device\n"}
"""Where nothing can be printed, and what is said of it on stderr."""
IDLE = WatchdogKind(
    name="idle", make=lambda fleet, ports: IdleWatchdog(fleet, replace(idle_fleet(1).ports(), ledger=ports.ledger))
)
"""One idle instance in each fleet, and the real ledger."""


def taken(how: str) -> int:
    """What takes no words: a pipe whose reader has gone, or a full disk."""
    if how == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.fixture
def orphan_fleet(tmp_path: Path) -> list[FleetDocument]:
    places = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    return [document().model_copy(update={"ledger_url": place, "notify": None}) for place in places]


@pytest.mark.parametrize("how", list(LOST))
def test_each_fleet_has_its_pass_and_none_is_called_undone(
    orphan_fleet: list[FleetDocument], how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with os.fdopen(taken(how), "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        code, answers = over_fleets(IDLE, orphan_fleet, Options(apply=True, accept=(DIGEST,)))
    assert code is Exit.DONE
    assert [[outcome["kind"] for outcome in answer["outcomes"]] for answer in answers] == [["done"], ["done"]]
    assert capsys.readouterr().err == LOST[how]


@pytest.mark.parametrize("how", list(LOST))
def test_a_closed_output_does_not_stop_other_fleets(
    orphan_fleet: list[FleetDocument], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, span = open_ledger(orphan_fleet[0].ledger_url), (datetime.now(UTC), timedelta(minutes=10))
    assert operations.acquire_lease(ledger, "aws/test/us-east-1:idle", "elsewhere/b/1/2", span) is None
    ledger.dispose()
    with os.fdopen(taken(how), "w") as err:
        monkeypatch.setattr(sys, "stderr", err)
        code, answers = over_fleets(IDLE, orphan_fleet, Options(apply=True, accept=(DIGEST,)), Show.PROBLEMS)
        STDERR.print("and what follows")
    assert (code, "skipped" in answers[0], len(answers[1]["outcomes"])) == (Exit.DONE, True, 1)


def test_a_closed_json_output_does_not_change_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(taken("gone"), "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        print_json(["more than a pipe holds"] * 100_000)
        print_json("or less")


def test_json_of_which_a_part_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(taken("full"), "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(OSError, match="No space left"):
            print_json("short")
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
