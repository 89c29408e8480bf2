"""Empty ledgers on SQLite and on a PostgreSQL server of the tests' own."""

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from gpufleet.ledger.database import open_database
from gpufleet.ledger.schema import open_ledger
from tests.postgres import running


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    # not under tmp_path: the path of a socket may have 107 characters only, and the server's user must reach it
    with tempfile.TemporaryDirectory(prefix="gpufleet-pg-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder) / "pg") as url:
            yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the URL of an empty database, another one with each call."""
    numbers = count()
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path}/ledger{next(numbers)}.db"
    address: str = request.getfixturevalue("server")

    def made() -> str:
        name = f"t{abs(hash(request.node.nodeid))}_{next(numbers)}"
        engine = open_database(address)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"create database {name}"))
        engine.dispose()
        return address.replace("/postgres?", f"/{name}?")

    return made


@pytest.fixture
def url(new_database: Callable[[], str]) -> str:
    """An empty database."""
    return new_database()


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
