"""The ledger's tables on SQLite and PostgreSQL: creation, migration, concurrent use, and refusal with a reason."""

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select, text

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import history, outbox
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import (
    ActivityHour,
    EndCause,
    Run,
    RunEnd,
    TokenReading,
    add_activity,
    add_ends,
    add_prices,
    add_readings,
    add_runs,
)
from gpufleet.ledger.rollups import reading_spans, roll_up
from gpufleet.ledger.schema import LedgerError, explained, open_ledger
from gpufleet.ledger.tables import ACTIVITY
from tests.fixtures.ledgers import Ledgers

NOW = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)
FLEET = "aws/test/us-east-1"


def run(last_seen: datetime = NOW) -> Run:
    return Run(
        cloud=Cloud.AWS,
        instance_id="i-1",
        started_at=NOW - timedelta(hours=1),
        environment=FLEET,
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=CapacityType.SPOT,
        last_seen_at=last_seen,
        model="acme/modèle-🚀",
    )


def test_facts_are_read_back_as_written(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    price = Price(
        sku="s",
        region="us-east-1",
        zone="us-east-1a",
        valid_from=NOW,
        source="t",
        usd_per_hour=Decimal("0.123456789012345678"),
        as_of=NOW,
    )
    reading = TokenReading(environment=FLEET, instance_id="i-1", engine="8000/0", model="m", at=NOW, prompt=2**60)
    end = RunEnd(
        cloud=Cloud.AWS,
        instance_id="i-1",
        started_at=NOW - timedelta(hours=1),
        ended_at=NOW + timedelta(hours=2),
        cause=EndCause.PREEMPTED,
        exact=True,
    )
    for _ in range(2):
        with writing(engine) as connection:
            add_runs(connection, [run(), run(NOW + timedelta(hours=1)), run()])
            add_ends(connection, [end])
            add_prices(connection, [price])
            add_readings(connection, [reading])
            roll_up(connection, [reading])
    with engine.connect() as connection:
        (found,) = history.runs(connection, FLEET, NOW - timedelta(days=1), NOW + timedelta(days=1))
        assert (found.last_seen_at, found.ended_at) == (NOW + timedelta(hours=1), end.ended_at)
        assert (found.model, found.end_cause) == ("acme/modèle-🚀", EndCause.PREEMPTED)
        assert history.prices(connection, "us-east-1") == [price]
        (engine_parts,) = reading_spans(connection, FLEET, NOW - timedelta(hours=3), NOW + timedelta(hours=3))
        assert engine_parts[0].first == reading


def test_concurrent_writers_lose_no_slot(url: str, ledgers: Ledgers) -> None:
    ledgers.open(url)
    hour, ready = NOW.replace(minute=0, second=0, microsecond=0), threading.Barrier(2)

    def write(bits: range) -> None:
        engine = ledgers.open(url)
        ready.wait(timeout=60)
        for bit in bits:
            with writing(engine) as connection:
                slot = ActivityHour(environment=FLEET, instance_id="i-1", hour=hour, busy=1 << bit, idle=0)
                add_activity(connection, [slot])

    threads = [threading.Thread(target=write, args=(range(start, 60, 2),)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    with ledgers.open(url).connect() as connection:
        (row,) = connection.execute(select(ACTIVITY))
        assert int(row.busy, 16) == (1 << 60) - 1


def test_concurrent_posters_claim_a_message_once(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    with writing(engine) as connection:
        assert outbox.enqueue(connection, outbox.Message(key="k", channel="#c", text="t"), NOW)
        assert not outbox.enqueue(connection, outbox.Message(key="k", channel="#c", text="u"), NOW)
    taken: list[object] = []
    ready = threading.Barrier(4)

    def take(name: str) -> None:
        mine = ledgers.open(url)
        ready.wait(timeout=60)
        if outbox.take(mine, "#c", name, NOW, timedelta(minutes=1)) is not None:
            taken.append(name)

    threads = [threading.Thread(target=take, args=(f"p{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(taken) == 1


def test_many_processes_may_open_a_new_ledger_at_once(url: str, ledgers: Ledgers) -> None:
    failures: list[BaseException] = []
    ready = threading.Barrier(4)

    def open_it() -> None:
        ready.wait(timeout=60)
        try:
            ledgers.open(url)
        except BaseException as error:  # noqa: BLE001 - the test shows whatever went wrong
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []


def test_newer_ledger_is_not_changed(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    with writing(engine) as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(LedgerError, match="newer than this gpufleet supports.*upgrade gpufleet"):
        ledgers.open(url)


def broken(folder: Path) -> str:
    (folder / "broken.db").write_bytes(b"this is no database, whatever its name says" * 100)
    return f"sqlite:///{folder}/broken.db"


def torn(folder: Path) -> str:
    """A ledger file with overwritten bytes in its middle."""
    path = folder / "torn.db"
    engine = open_ledger(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.exec_driver_sql("select 1")
    engine.dispose()
    content = bytearray(path.read_bytes())
    content[100:8192] = b"\xff" * (8192 - 100)
    path.write_bytes(content)
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(broken, "not a database.*point ledger_url", id="no database"),
        pytest.param(torn, "malformed.*import an export", id="damaged in the middle"),
        pytest.param(lambda _: "mysql://u:secret@h/db", "SQLite.*or PostgreSQL", id="another database"),
        pytest.param(lambda _: "nonsense", "ledger's URL", id="no URL"),
        pytest.param(lambda _: "sqlite+nonsense:////l.db", "write sqlite:////path", id="no such driver"),
        pytest.param(lambda _: "postgresql://u:secret@h:port/db", "ledger's URL", id="no port"),
        pytest.param(
            lambda _: "postgresql://u@127.0.0.1:1/db?password=secret",
            "u@127.0.0.1:1/db: ",
            id="password as an option",
        ),
        pytest.param(
            lambda _: "postgresql://u:secret@127.0.0.1:1/db",
            "refused.*start the database server",
            id="no server there",
        ),
    ],
)
def test_unusable_ledger_is_an_error_with_the_cause(tmp_path: Path, make: object, message: str) -> None:
    address: str = make(tmp_path)  # pyright: ignore[reportCallIssue]
    with pytest.raises(LedgerError, match=message) as caught:
        open_ledger(address)
    assert "secret" not in str(caught.value)


def test_full_disk_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/l.db")

    def write() -> None:
        with explained("the ledger"), writing(engine) as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=1")
            connection.exec_driver_sql("CREATE TABLE more AS SELECT zeroblob(10000000)")

    with pytest.raises(LedgerError, match="the ledger: database or disk is full: free space"):
        write()
    engine.dispose()
