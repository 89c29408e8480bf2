"""`gpufleet keep | pause | resume` with what they cannot do."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from cli.brakes import remove_keep
from cli.fleets import load
from cli.main import build
from cli.output import Exit, UserError
from cli.ports import fleet_of
from ledger import operations
from ledger.operations import BrakeRow
from ledger.schema import open_ledger
from tests.unit.small_fleet import document


@pytest.mark.parametrize("command", ["pause", "keep"])
def test_an_end_after_all_time_is_wrong_use(tmp_path: Path, command: str) -> None:
    open_ledger(f"sqlite:///{tmp_path}/ledger.db").dispose()
    words = [command, "chat", "--reason", "x", "--for", "999999999d", "--fleet", str(document(tmp_path))]
    done = CliRunner().invoke(build("brakes"), words)
    assert isinstance(done.exception, UserError), done.exception
    assert done.exception.code is Exit.WRONG_USE
    assert "--for 999999999d" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ["pause", "chat", "--reason", "x", "--for", "0s"], "--for 0s: ends at once; name", id="pause 0s"
        ),
        pytest.param(["keep", "chat", "--reason", "x", "--for", "0d"], "--for 0d: ends at once; name", id="keep 0d"),
        pytest.param(["keep", "chat", "--reason", "x", "--for", ""], "--for '' is no duration: write", id="keep ''"),
        pytest.param(["pause", "chat", "--reason", "x", "--for", "soon"], "--for 'soon' is no", id="pause soon"),
        pytest.param(["pause", "chat", "--reason", " "], "--reason ' ' is empty: say why", id="pause, no reason"),
        pytest.param(
            ["target", "chat", "1", "--reason", ""], "--reason '' is empty: say why", id="target, no reason"
        ),
        pytest.param(["drain", "i-1", "--reason", ""], "--reason '' is empty: say why", id="drain, no reason"),
    ],
)
def test_wrong_words_are_said_with_the_remedy(tmp_path: Path, words: list[str], said: str) -> None:
    open_ledger(f"sqlite:///{tmp_path}/ledger.db").dispose()
    done = CliRunner().invoke(build("brakes"), [*words, "--fleet", str(document(tmp_path))])
    assert isinstance(done.exception, UserError), done.exception
    assert (done.exception.code, said in str(done.exception)) == (Exit.WRONG_USE, True), done.exception


class Knows:
    """An inventory of a cloud that knows no instance, or cannot be asked."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error

    def instance(self, instance_id: str) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("scope", "error", "code", "left"),
    [
        pytest.param("i-1", None, None, 0, id="it is gone"),
        pytest.param("i-2", None, Exit.WRONG_USE, 1, id="nobody ever braked it"),
        pytest.param("i-1", OSError("no answer"), Exit.FAILED, 1, id="who knows whether it is gone"),
    ],
)
def test_the_pause_of_an_instance_that_is_gone_can_be_released(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scope: str,
    error: OSError | None,
    code: Exit | None,
    left: int,
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    engine, path = open_ledger(url), document(tmp_path)
    fleet = fleet_of(load([str(path)])[0])
    now = datetime.now(UTC)
    brake = BrakeRow(id=0, kind="pause", scope="i-1", owner="ops", reason="x", since=now, until=None)
    operations.set_brake(engine, fleet, brake)
    monkeypatch.setattr("cli.brakes.inventory_of", lambda _: Knows(error))
    done = CliRunner().invoke(build("brakes"), ["resume", scope, "--fleet", str(path)])
    assert getattr(done.exception, "code", None) is code, done.exception
    assert len(operations.brakes(engine, fleet, now)) == left
    engine.dispose()


class Refuses:
    """An inventory whose cloud lets nobody remove a tag."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        if self._whole:
            raise OSError("ec2:DeleteTags: denied")
        return dict.fromkeys(instance_ids, "ec2:DeleteTags: denied")


@pytest.mark.parametrize("whole", [True, False], ids=["the call fails", "one instance fails"])
def test_a_keep_tag_that_stays_is_said(whole: bool) -> None:
    with pytest.raises(UserError, match="released in the ledger, but its tag .* could not be removed: ec2:Delete"):
        remove_keep(cast(Any, Refuses(whole=whole)), "i-1")
