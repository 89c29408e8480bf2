"""The sums that a pass stores for the screens: equal to the report, of one moment, and with their real age."""

import io
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from sqlalchemy import Engine

from app import cost_sums
from app.fleet_view import Costs, Watched
from app.fleets import load_one
from app.wiring import Wired, wire
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.console import ledger_data
from gpufleet.console.text import screen
from gpufleet.console.view import CostView, FleetView
from gpufleet.domain.model import InstanceList
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass
from gpufleet.ledger.history import prices
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.sums import Span, read_sums, write_sums
from gpufleet.settings.document import FleetDocument
from tests.fixtures.console.fleet import instance
from tests.fixtures.small_fleet import FLEET, HOUR, T0, document, fill, read_json

LOOK = T0 + 6 * HOUR
"""The last cost pass over the small fleet."""
MINUTE = timedelta(minutes=1)


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    return load_one(str(document(tmp_path)))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Created once: each test has its own copy."""
    path = tmp_path_factory.mktemp("filled") / "ledger.db"
    engine = open_ledger(f"sqlite:///{path}")
    fill(engine)
    engine.dispose()
    return path


@pytest.fixture
def ledger(filled: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = open_ledger(f"sqlite:///{shutil.copy(filled, tmp_path / 'ledger.db')}")
    yield engine
    engine.dispose()


def left(ledger: Engine, now: datetime) -> tuple[CostView, CostView | None]:
    found = ledger_data.stored_costs(ledger, FLEET, now)
    assert found is not None
    return found


def looked(ledger: Engine, at: datetime) -> None:
    """Runs another pass of the cost watchdog."""
    with writing(ledger) as connection:
        facts.add_pass(
            connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
        )


@pytest.mark.parametrize("since", [pytest.param("11:00", id="hour"), pytest.param("00:00", id="today")])
def test_stored_sums_equal_the_report(fleet: FleetDocument, ledger: Engine, tmp_path: Path, since: str) -> None:
    cost_sums.store_sums(fleet, ledger, LOOK)
    hour, today = left(ledger, LOOK)
    found = hour if since == "11:00" else today
    window = ("--since", f"2026-11-20T{since}", "--until", "2026-11-20T12:00")
    report = read_json("cost", "--fleet", tmp_path / "fleet.json", *window)
    assert found is not None
    total, pools = report["total"], report["by"]["pool"]
    assert (found.usd, found.idle_usd) == (Decimal(total["usd"]), Decimal(total["usd_idle"]))
    assert str(found.unit.blended) == total["usd_per_million_tokens"]["blended"]
    assert {name: str(usd) for name, (usd, _) in found.by_pool.items()} == {
        name: figure["usd"] for name, figure in pools.items()
    }
    assert (found.known_until, found.usd > 0) == (LOOK, True)


def test_stored_sums_equal_those_that_a_screen_computes(fleet: FleetDocument, ledger: Engine) -> None:
    cost_sums.store_sums(fleet, ledger, LOOK)
    computed = [
        ledger_data.cost(cost_sums.compute_sums(fleet, ledger, [span], LOOK), span)
        for span in (Span.HOUR, Span.TODAY)
    ]
    assert list(left(ledger, LOOK)) == computed


def test_later_pass_replaces_the_stored_sums(fleet: FleetDocument, ledger: Engine) -> None:
    with ledger.connect() as connection:
        assert read_sums(connection, FLEET) == []
    cost_sums.store_sums(fleet, ledger, LOOK)
    with ledger.connect() as connection:
        first = read_sums(connection, FLEET)
    assert {one.pool for one in first} == {None, "chat", "batch"}
    later = [replace(one, known_until=LOOK + MINUTE) for one in first if one.pool != "batch"]
    with writing(ledger) as connection:
        write_sums(connection, FLEET, later)
        write_sums(connection, "aws/other/us-east-1", first)
    with ledger.connect() as connection:
        assert read_sums(connection, FLEET) == later


def test_empty_ledger_has_no_sums(fleet: FleetDocument, tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    cost_sums.store_sums(fleet, engine, LOOK)
    assert ledger_data.stored_costs(engine, FLEET, LOOK) is None
    engine.dispose()


@pytest.mark.parametrize(
    ("look_after", "taken"),
    [
        pytest.param(None, True, id="of the last look"),
        pytest.param(5 * MINUTE, True, id="the pass after is still adding up"),
        pytest.param(40 * MINUTE, False, id="passes since then left none"),
    ],
)
def test_sums_are_used_while_they_are_of_the_last_pass(
    fleet: FleetDocument, ledger: Engine, look_after: timedelta | None, taken: bool
) -> None:
    cost_sums.store_sums(fleet, ledger, LOOK)
    if look_after is not None:
        looked(ledger, LOOK + look_after)
    assert (ledger_data.stored_costs(ledger, FLEET, LOOK + HOUR) is not None) == taken


def test_sum_of_yesterday_is_not_used_for_today(fleet: FleetDocument, ledger: Engine) -> None:
    cost_sums.store_sums(fleet, ledger, LOOK)
    assert left(ledger, LOOK.replace(hour=23, minute=59))[1] is not None
    hour, today = left(ledger, LOOK + timedelta(days=1))
    assert (hour.known_until, today) == (LOOK, None)


class _Fleet:
    """A cloud with one instance whose agent has no address."""

    def listed(self) -> InstanceList:
        return InstanceList(instances=[replace(instance(1), private_address=None)])


@pytest.fixture
def wired(fleet: FleetDocument) -> Iterator[Wired]:
    """The real objects, except for the cloud and for a Prometheus without data."""
    made = wire(fleet, "status")
    nothing = {"status": "success", "data": {"resultType": "vector", "result": [], "yaml": "{}"}}
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=nothing)))
    ports = replace(made.ports, inventory=_Fleet())  # pyright: ignore[reportArgumentType]
    yield replace(made, ports=ports, prometheus=Prometheus("http://prometheus", client))
    client.close()
    made.engine.dispose()


def look(wired: Wired, costs: Costs) -> FleetView:
    return Watched(wired.document, costs, wired).look()


def shown(view: FleetView) -> str:
    written = io.StringIO()
    Console(file=written, width=100).print(screen(view))
    return written.getvalue()


@pytest.mark.parametrize(
    ("costs", "usd"),
    [
        pytest.param(Costs.LEFT, Decimal(7), id="as it was left"),
        pytest.param(Costs.REFRESHED, Decimal(0), id="computed again: nothing ran in the hour before now"),
        pytest.param(Costs.NONE, None, id="left out"),
    ],
)
def test_status_shows_stored_sums_unless_the_option_requests_new_ones(
    ledger: Engine, wired: Wired, costs: Costs, usd: Decimal | None
) -> None:
    cost_sums.store_sums(wired.document, ledger, LOOK)
    with ledger.connect() as connection:
        marked = [replace(one, usd=Decimal(7)) for one in read_sums(connection, FLEET)]
    with writing(ledger) as connection:
        write_sums(connection, FLEET, marked)
    hour = look(wired, costs).read.hour
    assert (None if hour is None else hour.usd) == usd


def test_status_computes_sums_if_no_pass_stored_them(ledger: Engine, wired: Wired) -> None:
    now = datetime.now(UTC)
    looked(ledger, now)
    hour = look(wired, Costs.LEFT).read.hour
    assert hour is not None
    assert (hour.known_until, hour.usd) == (now, Decimal(0))


@pytest.mark.parametrize(
    ("age", "old"), [pytest.param(3 * MINUTE, False, id="fresh"), pytest.param(3 * HOUR, True, id="old")]
)
def test_status_shows_the_age_of_its_costs(ledger: Engine, wired: Wired, age: timedelta, old: bool) -> None:
    at = datetime.now(UTC) - age
    looked(ledger, at)
    cost_sums.store_sums(wired.document, ledger, at)
    text = shown(look(wired, Costs.LEFT))
    assert f"costs as of {at:%H:%M} UTC, {'3 h' if old else '3 min'} ago" in text
    assert ("`gpufleet watch cost` has written nothing since" in text) == old


def test_long_running_screen_shows_the_current_price(ledger: Engine, wired: Wired) -> None:
    now = datetime.now(UTC)
    times = iter([now, now + timedelta(seconds=10), now + timedelta(minutes=2)])
    watched = Watched(wired.document, Costs.NONE, wired, clock=lambda: next(times))
    shown: list[Decimal | None] = []
    for usd in ("0.31", "0.41", "0.51"):
        seen = Price(
            sku="aws:ec2:g6.xlarge:spot", region="us-east-1", zone="us-east-1a", source="test",
            valid_from=now - HOUR + timedelta(seconds=float(usd) * 100), usd_per_hour=Decimal(usd), as_of=now,
        )  # fmt: skip
        with writing(ledger) as connection:
            facts.add_prices(connection, [seen])
        shown.append(watched.look().instances[0].usd_per_hour)
    assert shown == [Decimal("0.31"), Decimal("0.31"), Decimal("0.51")]


def test_usage_without_a_price_is_counted(fleet: FleetDocument, ledger: Engine) -> None:
    with ledger.connect() as connection:
        assert prices(connection, "us-east-1")
    with writing(ledger) as connection:
        connection.exec_driver_sql("delete from price_observations")
        connection.exec_driver_sql("update runs set machine_type = 'x9.unknown'")
    cost_sums.store_sums(fleet, ledger, LOOK)
    hour, _ = left(ledger, LOOK)
    assert hour.unpriced > 0
