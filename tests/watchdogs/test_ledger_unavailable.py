"""A ledger in PostgreSQL whose server dies, comes back, or takes connections and says nothing."""

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.errors import AppError
from app.passes import Options, WatchdogKind, kinds
from cli.output import Exit
from cli.watch_pass import over_fleets
from gpufleet.domain.model import InstanceList
from gpufleet.ledger import operations
from gpufleet.ledger.database import open_database
from gpufleet.ledger.schema import LedgerError, open_ledger
from gpufleet.settings.document import FleetDocument
from tests.fixtures.moto_account import moto_account
from tests.fixtures.postgres import Server, served
from tests.fixtures.watchdogs.plain import document
from watchdogs.ports import Inventory

pytestmark = pytest.mark.slow
FLEET = "aws/test/us-east-1"


@pytest.fixture
def server() -> Iterator[Server]:
    # a short path for its socket, in a folder that the server's user reaches
    with tempfile.TemporaryDirectory(prefix="gpufleet-pg-") as folder:
        Path(folder).chmod(0o755)
        with served(Path(folder) / "pg") as made:
            yield made


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with moto_account() as url:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield


@dataclass
class Fatal:
    """An inventory whose list is the last thing that happens before the ledger's server dies."""

    inner: Inventory
    server: Server

    def listed(self) -> InstanceList:
        found = self.inner.listed()
        self.server.end()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def dying(kind: WatchdogKind, server: Server) -> WatchdogKind:
    return replace(
        kind,
        make=lambda read, ports: kind.make(read, replace(ports, inventory=Fatal(ports.inventory, server))),
    )


def watched(server: Server) -> FleetDocument:
    made = document(groups=[], watchdogs={}, target=0)
    return made.model_copy(update={"prometheus_url": "http://10.9.9.9:9090", "ledger_url": server.url})


@pytest.mark.usefixtures("account")
def test_a_pass_that_loses_its_ledger_reports_it_and_the_next_pass_continues(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    idle, fleet, options = kinds()["idle"], [watched(server)], Options(apply=True)
    assert over_fleets(idle, fleet, options)[0] is Exit.DONE
    code, [answer] = over_fleets(dying(idle, server), fleet, options)
    assert code is Exit.FAILED
    assert answer["error"].startswith("the ledger failed: ")
    output = capsys.readouterr().err
    assert output.endswith("The next pass continues.\n") and len(output.splitlines()) == 1, "no statement of SQL"
    with pytest.raises(AppError, match="Is the server running|No such file"):
        over_fleets(idle, fleet, options)
    server.start()
    code, [answer] = over_fleets(idle, fleet, options)
    assert code is Exit.DONE
    assert "skipped" not in answer, "the lease of the pass that was cut off is its own process's"


def test_open_ledger_survives_a_server_restart(server: Server) -> None:
    engine = open_ledger(server.url)
    operations.seed_target(engine, FLEET, "chat", 3, datetime(2026, 11, 22, tzinfo=UTC))
    server.end()
    server.start()
    assert [row.value for row in operations.targets(engine, FLEET)] == [3]
    engine.dispose()


def test_a_silent_server_times_out(server: Server) -> None:
    pid = server.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(LedgerError, match="timeout expired: check host and port of ledger_url"):
            open_ledger(f"{server.url}&connect_timeout=2")
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("output", "waits"), [("", "10"), ("&connect_timeout=60", "60")], ids=["ours", "the URL's"])
def test_a_lost_network_is_noticed_within_a_minute(server: Server, output: str, waits: str) -> None:
    """Kernels probe after hours only: the library must set them to probe after seconds."""
    engine = open_database(f"{server.url}{output}")
    with engine.connect() as connection:
        known = connection.connection.dbapi_connection.info.get_parameters()  # pyright: ignore[reportOptionalMemberAccess]
    engine.dispose()
    assert known["connect_timeout"] == waits
    asked = int(known["keepalives_idle"]) + int(known["keepalives_interval"]) * int(known["keepalives_count"])
    assert asked <= 60
    assert int(known["tcp_user_timeout"]) <= 60_000
