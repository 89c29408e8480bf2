"""Commands name a missing or unreadable price, or show it as unknown. None ends in a traceback."""

import shutil
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from app import alerts, cost_sums, unobserved
from app.errors import AppError
from app.fleets import load_one
from cli.commands import build
from gpufleet.domain.model import CapacityType
from gpufleet.domain.prices import FREE_IF_PREEMPTED
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import EndCause, RunEnd
from gpufleet.ledger.outbox import messages
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.small_fleet import HOUR, T0, WINDOW, document, fill, run

GROUPS = [
    {"name": "spot-a", "type": "spot", "zone": "us-east-1a", "machine_types": ["g6.xlarge", "x9.large"], "max": 5},
    {"name": "od", "type": "on-demand", "machine_types": ["g6.xlarge"], "max": 5},
]


def _statement(path: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(sql, values)
    connection.close()


def unpriced_instances(path: Path) -> None:
    """Machines that no list contains: one that runs, one that was terminated, one that was preempted in its first
    hour.
    """
    engine = open_ledger(f"sqlite:///{path}")
    odd = [
        run(name, start, kind, machine_type="x9.large", last_seen_at=T0 + 6 * HOUR)
        for name, start, kind in (
            ("i-odd", 0, CapacityType.ON_DEMAND),
            ("i-taken", 1, CapacityType.SPOT),
            ("i-lost", 2, CapacityType.SPOT),
            ("i-paid-odd", 0, CapacityType.RESERVED),
        )
    ]
    ends = [
        RunEnd(cloud=one.cloud, instance_id=one.instance_id, started_at=one.started_at,
               ended_at=one.started_at + FREE_IF_PREEMPTED[one.cloud] / 2, cause=cause, exact=exact)
        for one, cause, exact in ((odd[1], EndCause.PREEMPTED, True), (odd[2], EndCause.ABSENT, False))
    ]  # fmt: skip
    with writing(engine) as connection:
        facts.add_runs(connection, odd)
        facts.add_ends(connection, ends)
    _statement(path, "update runs set machine_type = 'x9.large' where instance_id = 'i-idle'")
    engine.dispose()


def spot_alone(path: Path) -> None:
    _statement(path, "delete from price_observations where sku not like '%:spot'")


def on_demand_alone(path: Path) -> None:
    _statement(path, "delete from price_observations where sku like '%:spot'")


def no_prices(path: Path) -> None:
    _statement(path, "delete from price_observations")


def _corrupt(column: str, value: object) -> Callable[[Path], None]:
    """Changes one column of every row; rows whose keys would then be equal are removed."""
    return lambda path: _statement(path, f"update or replace price_observations set {column} = ?", value)  # noqa: S608


LEDGERS: dict[str, Callable[[Path], None]] = {
    "unpriced instances": unpriced_instances,
    "spot prices alone": spot_alone,
    "on-demand prices alone": on_demand_alone,
    "no prices": no_prices,
    "a price that is not a number": _corrupt("usd_per_hour", "0,36"),
    "an empty price": _corrupt("usd_per_hour", ""),
    "a price of NaN": _corrupt("usd_per_hour", "NaN"),
    "a negative price": _corrupt("usd_per_hour", "-1"),
    "a price without end": _corrupt("usd_per_hour", "Infinity"),
    "a price from no time on": _corrupt("effective_at", "yesterday"),
    "a price of a time beyond all": _corrupt("observed_at", 10**18),
}
CORRUPT = [name for name in LEDGERS if name.startswith(("a price", "a negative", "an empty"))]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in which every resource has a price."""
    path = tmp_path_factory.mktemp("filled") / "ledger.db"
    engine = open_ledger(f"sqlite:///{path}")
    fill(engine)
    engine.dispose()
    _statement(path, "pragma journal_mode = delete")
    return path


@pytest.fixture(params=[name for name in LEDGERS if name not in CORRUPT[1:]])
def fleet(request: pytest.FixtureRequest, tmp_path: Path, filled: Path) -> Path:
    shutil.copy(filled, tmp_path / "ledger.db")
    if request.param != "unpriced instances":
        # the packaged list does not contain it, either
        _statement(tmp_path / "ledger.db", "update runs set machine_type = 'x9.large'")
        _statement(
            tmp_path / "ledger.db", "update price_observations set sku = replace(sku, 'g6.xlarge', 'x9.large')"
        )
    LEDGERS[request.param](tmp_path / "ledger.db")
    return _document(tmp_path)


def _document(folder: Path) -> Path:
    pool: dict[str, Any] = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "search", "target": 1, "min": 0, "max": 5,
        "drain_deadline": "90s", "watchdogs": {}, "groups": GROUPS,
    }  # fmt: skip
    shared = [{"name": "disk", "sku": "aws:ebs:gp3", "units": "100", "per": "instance"}]
    budgets = [{"pool": "chat", "usd_per_month": "10"}, {"team": "search", "usd_per_month": "10"}]
    pools = [pool, pool | {"name": "batch", "owner": "research", "groups": []}]
    return document(folder, pools=pools, shared=shared, budgets=budgets)


def _called(group: str, *arguments: object) -> Result:
    return CliRunner().invoke(build(group), [group, *map(str, arguments)])


REPORTS = [(kind, form) for kind in ("waste", "savings", "digest") for form in ((), ("--json",))]
COMMANDS: dict[str, tuple[object, ...]] = {
    **{f"report cost {form}": ("report", "cost", "--format", form, *WINDOW)
       for form in ("table", "json", "csv", "html", "focus")},
    **{f"report cost by {by}": ("report", "cost", "--by", by, *WINDOW)
       for by in ("pool", "model", "capacity-type", "team", "zone", "machine-type")},
    **{" ".join(("report", kind, *form)): ("report", kind, *form, *WINDOW) for kind, form in REPORTS},
    "prices list": ("prices", "list"),
    "prices list --json": ("prices", "list", "--json"),
    "prices list --at": ("prices", "list", "--at", "2020-01-01"),
}  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize("options", [(), ("--allow-unpriced",)], ids=["priced", "unpriced"])
def test_a_command_names_the_missing_price_or_shows_it_as_unknown(
    fleet: Path, arguments: tuple[object, ...], options: tuple[str, ...]
) -> None:
    if options and arguments[0] != "report":
        pytest.skip("has no such option")
    done = _called(str(arguments[0]), *arguments[1:], "--fleet", fleet, *options)
    if done.exception is None or isinstance(done.exception, SystemExit):
        assert done.exit_code in (0, 3), done.output
        return
    assert isinstance(done.exception, AppError), done.exception
    assert "price" in str(done.exception)
    assert not options or "focus" in arguments, "unknown prices are allowed"


def test_sums_and_messages_of_a_pass_need_no_price(fleet: Path) -> None:
    made = load_one(str(fleet))
    engine: Engine = open_ledger(made.ledger_url)
    now = T0 + 6 * HOUR + timedelta(minutes=1)
    cost_sums.store_sums(made, engine, now)
    alerts.enqueue_all(made, engine, now)
    unobserved.enqueue_all(made, engine, now)
    for one in messages(engine):
        if "budget is used" in one.message.text:
            assert "no price for x9.large" in one.message.text or "not collected" in one.message.text


@pytest.mark.parametrize("name", CORRUPT)
def test_unreadable_price_is_named_and_others_are_kept(tmp_path: Path, filled: Path, name: str) -> None:
    shutil.copy(filled, tmp_path / "ledger.db")
    LEDGERS[name](tmp_path / "ledger.db")
    _statement(
        tmp_path / "ledger.db",
        "insert into price_observations (sku, region, zone, effective_at, source, usd_per_hour, observed_at)"
        " values ('aws:ec2:g6.xlarge:spot', 'us-east-1', 'us-east-1a', 0, 'other', '0.36', 0)",
    )
    path = _document(tmp_path)
    done = _called("report", "cost", *WINDOW, "--fleet", path, "--allow-unpriced")
    assert done.exit_code == 0, done.exception
    assert "a price in the ledger cannot be read and is ignored: aws:ec2:g6.xlarge:spot in us-east-1" in done.stdout
    assert "interrupted by the cloud: -0.18" in done.stdout, "by the price that can be read"
    listed = CliRunner().invoke(build("prices"), ["prices", "list", "--fleet", str(path)])
    assert "a price in the ledger cannot be read and is ignored" in listed.output
