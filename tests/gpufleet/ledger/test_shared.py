"""Ledger connections that one process shares, because a console reads the ledger for each response."""

import gc
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from app import reports
from app.windows import Window
from app.wiring import open_engine
from gpufleet.console import ledger_data
from gpufleet.ledger.database import open_database
from gpufleet.ledger.schema import HEAD, LedgerError, share_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.console.fleet import document
from tests.fixtures.postgres import Server, served

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # not under tmp_path: a socket path may have 107 characters at most, and the server's user needs access to it
    with tempfile.TemporaryDirectory(prefix="gpufleet-pg-") as folder:
        Path(folder).chmod(0o755)
        with served(Path(folder) / "pg") as made:
            yield made


def connections(server: Server) -> int:
    """The number of client connections, without the one that queries it."""
    engine = open_database(server.url)
    with engine.connect() as connection:
        count = connection.execute(
            text("select count(*) from pg_stat_activity where backend_type = 'client backend'")
        ).scalar_one()
    engine.dispose()
    return int(count) - 1


def answer(fleet: FleetDocument) -> None:
    """What the console reads of a ledger for its metrics and two of its pages."""
    window = Window(since=NOW - timedelta(hours=1), until=NOW, now=NOW, timezone="UTC")
    engine = open_engine(fleet)
    ledger_data.targets(engine, "aws/prod/us-east-1")
    ledger_data.about(open_engine(fleet), "aws/prod/us-east-1", "i-1")
    reports.cost(fleet, window, True)
    reports.with_facts(fleet, window, True)


def test_responses_share_a_few_connections_to_postgresql(server: Server) -> None:
    fleet = document("chat").model_copy(update={"ledger_url": server.url})
    gc.disable()  # the garbage collector would close unreferenced connections at an arbitrary time
    try:
        for _ in range(2):
            answer(fleet)
        assert connections(server) <= 2
    finally:
        gc.enable()
        share_ledger(server.url).dispose()
    assert connections(server) == 0
    answer(fleet)


def newer(engine: Engine, version: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = :version"), {"version": version})


def test_shared_ledger_survives_a_server_restart_and_rechecks_its_schema(server: Server) -> None:
    engine = share_ledger(server.url)
    server.end()
    with pytest.raises(LedgerError, match="connection"):
        share_ledger(server.url)
    server.start()
    assert share_ledger(server.url) is engine
    newer(engine, "9999")
    with pytest.raises(LedgerError, match="upgrade gpufleet"):
        share_ledger(server.url)
    newer(engine, HEAD)
    engine.dispose()


def test_restored_sqlite_ledger_is_reopened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    first = share_ledger(url)
    assert ledger_data.targets(first, "f") == {}
    for part in tmp_path.glob("ledger.db*"):
        part.unlink()
    second = share_ledger(url)
    assert second is not first
    assert ledger_data.targets(second, "f") == {}
    first.dispose()
    second.dispose()
