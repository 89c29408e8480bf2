"""Ledgers are checked, exported and imported on SQLite; a damaged or truncated export is refused as a whole."""

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner, Result

from app import cost_sums
from app.errors import AppError
from app.fleets import load_one
from cli.commands import build
from gpufleet.ledger import transfer
from gpufleet.ledger.database import writing
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.outbox import Message, enqueue
from gpufleet.ledger.schema import HEAD, LedgerError, open_ledger
from tests.fixtures import postgres
from tests.fixtures.small_fleet import HOUR, T0, document, fill

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def full(tmp_path: Path) -> Engine:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    with writing(engine) as connection:
        enqueue(connection, Message(key="k", channel="#c", text="🦊", detail={"blocks": []}), NOW)
    return engine


def lines(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(transfer.export(connection, NOW))


def import_rows(engine: Engine, what: list[str]) -> dict[str, int]:
    with writing(engine) as connection:
        return transfer.import_rows(connection, what, "a.jsonl")


def breaches(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return {one.rule for one in verify(connection)}


def test_ledger_filled_by_passes_is_valid(full: Engine) -> None:
    assert breaches(full) == set()


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        pytest.param(
            "update runs set last_seen_at = started_at - 1",
            "a run is last seen after its start",
            id="seen before its start",
        ),
        pytest.param(
            "update run_ends set ended_at = started_at - 1", "a run ends after its start", id="negative length"
        ),
        pytest.param(
            "delete from runs where instance_id = 'i-spot'", "an end belongs to a run", id="end without a run"
        ),
        pytest.param(
            "update token_readings set prompt = -5, cached = -6",
            "counters are 0 or more, cached at most prompt",
            id="negative counter",
        ),
        pytest.param("delete from token_hours", "hours equal the sums of their readings", id="hours lost"),
        pytest.param(
            "update token_hours set inner_prompt = inner_prompt + 1",
            "hours equal the sums of their readings",
            id="one token too many",
        ),
        pytest.param(
            "update activity_hours set busy = idle",
            "no slot of an hour is both busy and idle, and an hour has 360 slots",
            id="busy and idle",
        ),
        pytest.param(
            "update price_observations set usd_per_hour = '-1'", "a price is 0 or more", id="negative price"
        ),
        pytest.param("update price_observations set usd_per_hour = 'NaN'", "a price is 0 or more", id="no price"),
        pytest.param(
            "update reservations set instances = -1", "paid capacity is last seen after its start", id="-1 instances"
        ),
        pytest.param(
            "update boots set ready_at = launched_at - 1",
            "times of a boot are in order",
            id="ready before the launch",
        ),
        pytest.param(
            "update runs set instance_id = 'i-paid' where instance_id = 'i-fallback'",
            "runs of an instance follow each other",
            id="overlapping runs",
        ),
    ],
)
def test_broken_fact_is_detected(full: Engine, statement: str, rule: str) -> None:
    with writing(full) as connection:
        assert connection.execute(text(statement)).rowcount > 0
    assert rule in breaches(full)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("update cost_sums set usd = '9999' where pool = ''", id="different from its pools"),
        pytest.param("delete from cost_sums where pool = ''", id="without the fleet's sum"),
    ],
)
def test_sum_that_differs_from_its_pools_is_detected(full: Engine, tmp_path: Path, statement: str) -> None:
    cost_sums.store_sums(load_one(str(document(tmp_path))), full, T0 + 6 * HOUR)
    assert breaches(full) == set()
    with writing(full) as connection:
        assert connection.execute(text(statement)).rowcount > 0
    assert breaches(full) == {"a fleet's sum equals the sum of its pools"}


def test_sums_are_not_exported(full: Engine, tmp_path: Path) -> None:
    exported = lines(full)
    cost_sums.store_sums(load_one(str(document(tmp_path))), full, T0 + 6 * HOUR)
    assert lines(full) == exported


def test_imported_export_gives_the_same_ledger(full: Engine, tmp_path: Path) -> None:
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    exported = lines(full)
    counts = import_rows(other, exported)
    assert counts["token_readings"] == 64 and counts["outbox"] == 1
    assert lines(other) == exported
    assert breaches(other) == set()
    import_rows(other, exported)  # a second import changes nothing
    assert lines(other) == exported


def test_two_halves_of_a_ledger_make_the_whole(full: Engine, tmp_path: Path) -> None:
    halves = [open_ledger(f"sqlite:///{tmp_path}/{name}.db") for name in "ab"]
    exported = lines(full)
    for turn, half in enumerate(halves):
        import_rows(half, exported)
        with writing(half) as connection:
            odd = f"((at / 1000000 / 300) % 2) = {turn}"
            assert connection.execute(text(f"delete from token_readings where {odd}")).rowcount > 0
            connection.execute(text("delete from token_hours"))
            connection.execute(text("delete from outbox"))
    merged = lines(halves[0])
    import_rows(halves[1], merged)
    rows = [line for line in exported if '"table":"token_' in line]
    assert [line for line in lines(halves[1]) if '"table":"token_' in line] == rows


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda rows: rows[:-1], "is incomplete", id="no last line"),
        pytest.param(lambda rows: [*rows[:3], *rows[4:]], "is incomplete", id="a missing line"),
        pytest.param(
            lambda rows: [*rows[:3], rows[3][:20], *rows[4:]], "line 4: expected JSON", id="a truncated line"
        ),
        pytest.param(lambda rows: rows[1:], "is not an export", id="no first line"),
        pytest.param(lambda rows: [], "line 1: expected JSON", id="empty"),
        pytest.param(lambda rows: ['{"kind":"gpu-fleet ledger","version":9}', *rows[1:]], "upgrade", id="newer"),
        pytest.param(lambda rows: [rows[0], '{"table":"sqlite_master","row":{}}'], "has no table", id="no table"),
        pytest.param(lambda rows: [rows[0], '{"table":"runs","row":{"x":1}}'], "columns", id="other columns"),
        pytest.param(lambda rows: [rows[0], "[]"], "line 2: expected a JSON object", id="no object"),
    ],
)
def test_damaged_export_is_refused_as_a_whole(full: Engine, tmp_path: Path, damage, message: str) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    before = lines(other)
    with pytest.raises(LedgerError, match=message):
        import_rows(other, damage(lines(full)))  # pyright: ignore[reportUnknownArgumentType]
    assert lines(other) == before


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("runs", "cloud", "foo", "'foo' is not a valid Cloud"),
        ("runs", "capacity_type", {}, "capacity_type is {}; expected text"),
        ("runs", "started_at", 1.5, "started_at is 1.5; expected a whole number"),
        ("runs", "last_seen_at", 10**30, "line .*; nothing was imported"),
        ("run_ends", "exact", "yes", "exact is 'yes'; expected a whole number"),
        ("price_observations", "usd_per_hour", 0.36, "usd_per_hour is 0.36; expected text"),
        ("price_observations", "usd_per_hour", "-1", "usd_per_hour is '-1'; expected an amount"),
        ("price_observations", "usd_per_hour", "NaN", "usd_per_hour is 'NaN'; expected an amount"),
        ("price_observations", "usd_per_hour", "high", "usd_per_hour is 'high'; expected an amount"),
        ("activity_hours", "busy", 5, "busy is 5; expected text"),
    ],
)
def test_value_that_no_report_can_read_is_refused(
    full: Engine, tmp_path: Path, table: str, column: str, value: object, message: str
) -> None:
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    before, rows = lines(other), lines(full)
    number = next(n for n, row in enumerate(rows) if f'"table":"{table}"' in row)
    row = json.loads(rows[number])
    rows[number] = json.dumps({**row, "row": {**row["row"], column: value}})
    with pytest.raises(LedgerError, match=message) as caught:
        import_rows(other, rows)
    assert f"line {number + 1}" in str(caught.value)
    assert lines(other) == before


@pytest.mark.parametrize("line", ['{"table":[],"row":{}}', "[" * 100_000], ids=["a list for a name", "too deep"])
def test_line_that_is_not_a_row_is_refused(full: Engine, tmp_path: Path, line: str) -> None:
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(LedgerError, match="line 2: expected"):
        import_rows(other, [lines(full)[0], line])


def head_of(rows: list[str], **fields: str) -> list[str]:
    """The export with the header of a release that has another schema."""
    return [json.dumps(json.loads(rows[0]) | fields), *rows[1:]]


def with_rows(rows: list[str], table: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
    """An export with changed rows in one table."""
    found = [json.loads(row) for row in rows]
    return [json.dumps(row | {"row": change(row["row"])} if row.get("table") == table else row) for row in found]


def test_export_of_the_next_release_is_imported_without_its_new_parts(full: Engine, tmp_path: Path) -> None:
    other, exported = open_ledger(f"sqlite:///{tmp_path}/other.db"), lines(full)
    rows = with_rows(exported, "runs", lambda row: row | {"rack": "r1"})
    end = json.loads(rows[-1])
    rows = [*rows[:-1], '{"table":"racks","row":{"name":"r1"}}', json.dumps({"end": end["end"] | {"racks": 1}})]
    with pytest.raises(LedgerError, match="newer than this gpufleet reads"):
        import_rows(other, head_of(rows, schema="9999", oldest_reader="9999"))
    with pytest.raises(LedgerError, match="columns"):
        import_rows(other, rows)
    import_rows(other, head_of(rows, schema="9999", oldest_reader=HEAD))
    assert lines(other) == exported


def test_export_of_an_older_release_may_lack_nullable_columns(full: Engine, tmp_path: Path) -> None:
    other, exported = open_ledger(f"sqlite:///{tmp_path}/other.db"), lines(full)
    older = with_rows(exported, "runs", lambda row: {name: row[name] for name in row if name != "owner"})
    with pytest.raises(LedgerError, match="columns"):
        import_rows(other, older)
    import_rows(other, head_of(older, schema="0001"))
    wanted = with_rows(exported, "runs", lambda row: row | {"owner": None})
    assert list(map(json.loads, lines(other))) == list(map(json.loads, wanted))


def test_numbered_rows_of_another_ledger_are_not_mixed(full: Engine) -> None:
    exported = [line.replace("🦊", "🐻") for line in lines(full)]
    with pytest.raises(LedgerError, match="import into an empty ledger"):
        import_rows(full, exported)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(build("ledger"), ["ledger", *map(str, arguments)])


def test_command_checks_exports_and_imports(full: Engine, tmp_path: Path) -> None:
    fleet, out = document(tmp_path), tmp_path / "out.jsonl"
    assert call("verify", "--fleet", fleet).stdout == "the ledger is consistent\n"
    assert call("export", "--fleet", fleet, "--out", out).exit_code == 0
    elsewhere = document(tmp_path, ledger_url=f"sqlite:///{tmp_path}/moved.db")
    assert call("import", out, "--fleet", elsewhere).exit_code == 0
    assert json.loads(call("verify", "--fleet", elsewhere, "--json").stdout) == {"sound": True, "breaches": []}
    with writing(full) as connection:
        connection.execute(text("update reservations set instances = -1"))
    broken = call("verify", "--fleet", document(tmp_path))
    assert broken.exit_code == 3 and "cr-1" in broken.stdout


def test_missing_file_is_named_in_the_error(full: Engine, tmp_path: Path) -> None:
    done = call("import", tmp_path / "none.jsonl", "--fleet", document(tmp_path))
    assert isinstance(done.exception, AppError) and "none.jsonl" in str(done.exception)


@pytest.mark.slow
@pytest.mark.skipif(postgres.binaries() is None, reason="PostgreSQL is missing: apt-get install postgresql")
def test_ledger_moves_to_postgresql_and_back(full: Engine, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, postgres.running(Path(folder)) as url:
        server = open_ledger(url)
        exported = lines(full)
        import_rows(server, exported)
        assert breaches(server) == set()
        with writing(server) as connection:  # new row numbers continue after the imported ones
            assert enqueue(connection, Message(key="next", channel="#c", text="t"), NOW)
            connection.execute(text("delete from outbox where key = 'next'"))
        back = open_ledger(f"sqlite:///{tmp_path}/back.db")
        import_rows(back, lines(server))
        assert sorted(lines(back)) == sorted(exported)
        server.dispose()


def test_export_of_release_0_1_is_imported_with_codes(full: Engine, tmp_path: Path) -> None:
    with writing(full) as connection:
        decide = "insert into decision_heads values ('f', 'idle', :resource, 'end', :reason, '')"
        for resource, reason in (("i-1", "still idle after its grace"), ("i-2", "an unknown sentence")):
            connection.execute(text(decide), {"resource": resource, "reason": reason})
        begun = '{"resource": "i-1", "reason": "still idle after its grace", "detail": "as wanted"}'
        connection.execute(text("insert into intents values ('f', 'idle', 'i-1', :begun, 1)"), {"begun": begun})
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    import_rows(other, head_of(lines(full), schema="0005"))
    with other.connect() as connection:
        reasons = connection.execute(text("select reason from decision_heads order by resource")).scalars().all()
        intents = connection.execute(text("select decision from intents")).scalars().all()
    assert reasons == ["still_idle", "an unknown sentence"]
    assert intents == [begun.replace("still idle after its grace", "still_idle")]
