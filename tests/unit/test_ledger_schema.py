"""The ledger's tables on SQLite and PostgreSQL: made, migrated, used by two at once, refused with a reason."""

import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, select, text

from gpufleet.domain.model import CapacityType, Cloud
from ledger import history, outbox
from ledger.database import open_database, writing
from ledger.facts import (
    ActivityHour,
    EndCause,
    PriceObservation,
    Reading,
    Run,
    RunEnd,
    add_activity,
    add_ends,
    add_prices,
    add_readings,
    add_runs,
)
from ledger.finals import Confirmed, add_final, finals
from ledger.invariants import verify
from ledger.rollups import roll_up, stretches
from ledger.schema import HEAD, LedgerError, explained, open_ledger, schema_version
from ledger.sums import CostSum, Span, read_sums, write_sums
from ledger.tables import ACTIVITY, METADATA
from ledger.told import add_told, last_told
from ledger.transfer import export
from tests.postgres import running

NOW = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)
FLEET = "aws/test/us-east-1"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    # not under tmp_path: the path of a socket may have 107 characters only, and the server's user must reach it
    with tempfile.TemporaryDirectory(prefix="gpufleet-pg-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder) / "pg") as url:
            yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    address: str = request.getfixturevalue("server")
    name = f"t{abs(hash(request.node.nodeid))}"
    engine = open_database(address)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"create database {name}"))
    engine.dispose()
    return address.replace("/postgres?", f"/{name}?")


class Ledgers:
    """Opens ledgers and lets go of them in the end."""

    def __init__(self) -> None:
        self._open: list[Engine] = []

    def open(self, address: str) -> Engine:
        self._open.append(open_ledger(address))
        return self._open[-1]

    def close(self) -> None:
        for engine in self._open:
            engine.dispose()


@pytest.fixture
def ledgers() -> Iterator[Ledgers]:
    opened = Ledgers()
    yield opened
    opened.close()


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


def test_migrations_make_the_tables_that_the_code_declares(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    assert schema_version(engine) == HEAD
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_facts_come_back_as_they_went_in(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    price = PriceObservation(
        sku="s",
        region="us-east-1",
        zone="us-east-1a",
        effective_at=NOW,
        source="t",
        usd_per_hour=Decimal("0.123456789012345678"),
        observed_at=NOW,
    )
    reading = Reading(environment=FLEET, instance_id="i-1", engine="8000/0", model="m", at=NOW, prompt=2**60)
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
        (engine_parts,) = stretches(connection, FLEET, NOW - timedelta(hours=3), NOW + timedelta(hours=3))
        assert engine_parts[0].first == reading


def test_two_writers_at_once_lose_no_slot(url: str, ledgers: Ledgers) -> None:
    ledgers.open(url)
    hour, ready = NOW.replace(minute=0, second=0, microsecond=0), threading.Barrier(2)

    def write(bits: range) -> None:
        engine = ledgers.open(url)
        ready.wait(timeout=10)
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


def test_two_posters_at_once_take_a_message_once(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    with writing(engine) as connection:
        assert outbox.enqueue(connection, outbox.Message(key="k", channel="#c", text="t"), NOW)
        assert not outbox.enqueue(connection, outbox.Message(key="k", channel="#c", text="u"), NOW)
    taken: list[object] = []
    ready = threading.Barrier(4)

    def take(name: str) -> None:
        mine = ledgers.open(url)
        ready.wait(timeout=10)
        if outbox.take(mine, "#c", name, NOW, timedelta(minutes=1)) is not None:
            taken.append(name)

    threads = [threading.Thread(target=take, args=(f"p{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(taken) == 1


def test_many_may_open_a_new_ledger_at_once(url: str, ledgers: Ledgers) -> None:
    failures: list[BaseException] = []
    ready = threading.Barrier(4)

    def open_it() -> None:
        ready.wait(timeout=10)
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


def test_a_newer_ledger_is_left_alone(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    with writing(engine) as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(LedgerError, match="newer than this gpufleet knows.*upgrade gpufleet"):
        ledgers.open(url)


def broken(folder: Path) -> str:
    (folder / "broken.db").write_bytes(b"this is no database, whatever its name says" * 100)
    return f"sqlite:///{folder}/broken.db"


def torn(folder: Path) -> str:
    """A ledger whose middle was overwritten."""
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
    ("make", "words"),
    [
        pytest.param(broken, "not a database.*point ledger_url", id="no database"),
        pytest.param(torn, "malformed.*import an export", id="broken in the middle"),
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
            lambda _: "postgresql://u:secret@127.0.0.1:1/db", "refused.*start the database server", id="nobody there"
        ),
    ],
)
def test_a_ledger_that_cannot_be_used_says_why(tmp_path: Path, make: object, words: str) -> None:
    address: str = make(tmp_path)  # pyright: ignore[reportCallIssue]
    with pytest.raises(LedgerError, match=words) as caught:
        open_ledger(address)
    assert "secret" not in str(caught.value)


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/l.db")

    def write() -> None:
        with explained("the ledger"), writing(engine) as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=1")
            connection.exec_driver_sql("CREATE TABLE more AS SELECT zeroblob(10000000)")

    with pytest.raises(LedgerError, match="the ledger: database or disk is full: make room"):
        write()
    engine.dispose()


ADDED = ("finals", "team_readings", "told_hours", "cost_sums")
"""One more with each schema after the first."""
NEWER_TABLES = {f"{version:04}": ADDED[version - 1 :] for version in range(1, len(ADDED) + 1)}
"""Schema to the tables that it had not yet."""


@pytest.mark.parametrize("version", NEWER_TABLES)
def test_an_older_ledger_is_brought_to_date_with_all_it_holds(url: str, ledgers: Ledgers, version: str) -> None:
    engine = ledgers.open(url)
    reading = Reading(environment=FLEET, instance_id="i-1", engine="0", model="m", at=NOW, prompt=7, cached=3)
    with writing(engine) as connection:
        add_runs(connection, [run()])
        add_readings(connection, [reading])
        roll_up(connection, [reading])
        outbox.enqueue(connection, outbox.Message(key="k", channel="#c", text="🦊"), NOW)
    held = exported(engine)
    with writing(engine) as connection:
        for table in NEWER_TABLES[version]:
            connection.execute(text(f"drop table {table}"))
        connection.execute(text("update alembic_version set version_num = :old"), {"old": version})
    again = ledgers.open(url)
    assert schema_version(again) == HEAD
    with again.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        assert list(verify(connection)) == []
    assert exported(again) == held
    with writing(again) as connection:  # the new tables are written to, and numbers go on behind the old ones
        add_final(connection, bill())
        add_told(connection, FLEET, NOW)
        write_sums(connection, FLEET, [day()])
        assert outbox.enqueue(connection, outbox.Message(key="next", channel="#c", text="t"), NOW)
    with again.connect() as connection:
        assert finals(connection, FLEET, NOW - timedelta(days=1), NOW) == [bill()]
        assert last_told(connection, FLEET) == NOW
        assert read_sums(connection, FLEET) == [day()]


def exported(engine: Engine) -> list[str]:
    """All facts as lines, without the head, which names the schema."""
    with engine.connect() as connection:
        return list(export(connection, NOW))[1:-1]


def day() -> CostSum:
    return CostSum(
        span=Span.TODAY, pool=None, since=NOW - timedelta(hours=9), known_until=NOW, usd=Decimal("1583952.868800001"),
        idle_usd=Decimal(0), input_usd=None, output_usd=None, blended_usd=None, unpriced=0,
    )  # fmt: skip


def bill() -> Confirmed:
    return Confirmed(
        fleet=FLEET, since=NOW - timedelta(hours=1), until=NOW, digest="d", form="FOCUS",
        billed_usd=Decimal("1.23"), computed_usd=Decimal("1.230000000000000001"), at=NOW,
    )  # fmt: skip
