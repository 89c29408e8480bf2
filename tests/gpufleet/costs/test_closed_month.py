"""Closed periods: their reports stay identical to the byte, and later differences are reported to people."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app import trueup
from app.errors import AppError
from app.fleets import load_one
from app.trueup import Reconciled
from app.windows import Window
from gpufleet.costs.bills import Bill, BillFormat, BillLine
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, transfer
from gpufleet.ledger.closed_periods import closed_spans
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import declarations
from gpufleet.ledger.facts import CostPass, EndCause, RunEnd
from gpufleet.ledger.reservations import note_reservations, reservations
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import CLOSED_PERIODS
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, call, document, fill, read_json, run, stdout_of

NAT = {"name": "NAT gateway", "sku": "aws:vpc:nat-gateway", "units": "3"}
END = T0 + 6 * HOUR
FORMS = ("table", "json", "csv", "focus")


def stated(sku: str, usd: str, as_of: str = "2026-11-01") -> dict[str, str]:
    return {"sku": sku, "usd_per_hour": usd, "source": "contract", "as_of": as_of}


PRICES = [stated("aws:vpc:nat-gateway", "0.045")]


@pytest.fixture
def ledger(tmp_path: Path) -> Engine:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    return engine


def settings(folder: Path, **more: Any) -> Path:
    return document(folder, **({"shared": [NAT], "prices": {"overrides": PRICES}} | more))


def pools(folder: Path, change: Callable[[list[dict[str, Any]]], Any], **more: Any) -> Path:
    """Write the settings with changed pools."""
    path = settings(folder, **more)
    raw = json.loads(path.read_text())
    change(raw["pools"])
    path.write_text(json.dumps(raw))
    return path


def bill(digest: str = "d", usd: str = "0.72") -> Bill:
    lines = [
        BillLine(resource="i-idle", start=T0 + n * HOUR, end=T0 + (n + 1) * HOUR, usd=Decimal(usd), hours=Decimal(1))
        for n in range(6)
    ]
    return Bill(form=BillFormat.CUR, digest=digest, lines=tuple(lines), others=Decimal(0))


def close(fleet: Path, of: Bill | None = None, since: datetime = T0, until: datetime = END) -> Reconciled:
    """Reconcile the window with a bill that has every hour."""
    window = Window(since=since, until=until, now=END + HOUR, timezone="UTC")
    return trueup.reconcile(load_one(str(fleet)), of or bill(), window)


def written(fleet: Path, *window: str) -> dict[str, str]:
    """The report in every output format."""
    return {form: stdout_of("cost", "--fleet", fleet, *(window or WINDOW), "--format", form) for form in FORMS}


def notes_of(fleet: Path) -> str:
    return " ".join(call("cost", "--fleet", fleet, *WINDOW, "--json").stderr.split())


CHANGES = [
    pytest.param(lambda at: settings(at, shared=[NAT, NAT | {"name": "another"}]),
                 "+0.81 USD (pool batch +0.40, pool chat +0.40, team research +0.40, team", id="shared"),
    pytest.param(lambda at: settings(at, shared=[]), "-0.81 USD (pool batch -0.40, pool chat -0.40", id="no shared"),
    pytest.param(lambda at: settings(at, prices={"overrides": [stated("aws:vpc:nat-gateway", "0.09")]}),
                 "(pool batch +0.40, pool chat +0.40", id="a price"),
    pytest.param(lambda at: settings(at, prices={"overrides": []}), "(pool batch -0.40", id="no price"),
    pytest.param(
        lambda at: settings(at, prices={"overrides": [*PRICES, stated("aws:ec2:g6.xlarge:on-demand", "9")]}),
        "pool chat +", id="of instances",
    ),
    pytest.param(lambda at: pools(at, lambda all: all[0].update(max=45)),
                 "+0.00 USD (pool batch -0.32, pool chat +0.32", id="max"),
    pytest.param(lambda at: pools(at, lambda all: all[0].update(owner="others")),
                 "+0.00 USD (team others +0.40, team search -0.40)", id="owner"),
    pytest.param(lambda at: pools(at, lambda all: all.pop(0)), "pool chat -0.40", id="a removed pool"),
    pytest.param(lambda at: pools(at, lambda all: all[0].update(team_split="engine-seconds")), "", id="team split"),
    pytest.param(lambda at: pools(at, lambda all: all[0].update(model="m/other", model_source="hf://a/b")), "",
                 id="model"),
    pytest.param(
        lambda at: settings(at, commitments={"spends": [{
            "name": "sp", "usd_per_hour": "5", "rates": {"g6.xlarge": "0.4"}, "starts": "2026-11-01T00:00:00Z",
            "ends": "2027-11-01T00:00:00Z", "source": "order", "as_of": "2026-11-01",
        }]}), "pool chat -", id="a commitment",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_settings_change_no_byte_of_a_closed_period_and_the_difference_is_reported(
    tmp_path: Path, ledger: Engine, change: Callable[[Path], Path], text: str
) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    before = written(fleet)
    assert json.loads(before["json"])["state"] == "final"
    assert notes_of(fleet) == ""
    changed = change(tmp_path)
    assert written(changed) == before
    assert text in notes_of(changed)
    again = close(changed, bill("of another bill", "0.99"))
    assert again.is_refused
    assert again.closed_by is not None and again.closed_by.digest == "d"
    assert text in " ".join(again.would_change)
    assert written(changed) == before


def more_facts(engine: Engine) -> None:
    """Add facts that a repeated collection, later and on another host, may write for a past period."""
    with writing(engine) as connection:
        facts.add_runs(connection, [run("i-late", 0, CapacityType.ON_DEMAND, last_seen_at=END + 9 * HOUR)])
        facts.add_runs(connection, [run("i-fallback", 0.5, CapacityType.ON_DEMAND, last_seen_at=END + 9 * HOUR)])
        found = [
            RunEnd(cloud=Cloud.AWS, instance_id="i-late", started_at=T0, ended_at=T0 + HOUR, cause=EndCause.ENDED,
                   exact=True),
            RunEnd(cloud=Cloud.AWS, instance_id="i-fallback", started_at=T0 + HOUR / 2, ended_at=T0 + 5 * HOUR,
                   cause=EndCause.ENDED, exact=True),
            RunEnd(cloud=Cloud.AWS, instance_id="i-idle", started_at=T0, ended_at=T0 + HOUR, cause=EndCause.PREEMPTED,
                   exact=True),
        ]  # fmt: skip
        facts.add_ends(connection, found)
        kind = "aws:ec2:g6.xlarge:on-demand"
        late = Price(sku=kind, region="us-east-1", source="late", valid_from=T0 + HOUR, usd_per_hour=Decimal(50),
                     as_of=T0 + HOUR)  # fmt: skip
        facts.add_prices(connection, [late])
        (paid,) = reservations(connection, FLEET, T0, END)
        note_reservations(connection, [facts.Reservation(**{**vars_of(paid), "instances": 9})])
        for at in (T0 + 3 * HOUR, END + 9 * HOUR):
            done = CostPass(environment=FLEET, at=at, host="again", metrics_from=None, metrics_until=None)
            facts.add_pass(connection, done)


def vars_of(paid: facts.Reservation) -> dict[str, Any]:
    return {name: getattr(paid, name) for name in facts.Reservation.__dataclass_fields__}


def test_later_facts_change_no_byte_of_a_closed_period_and_are_reported(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    hour = ("--since", "2026-11-20T08:00", "--until", "2026-11-20T09:00")
    before, in_it = written(fleet), written(fleet, *hour)
    more_facts(ledger)
    assert written(fleet) == before
    assert written(fleet, *hour) == in_it
    assert "with them it would have cost" in notes_of(fleet)


def test_windows_add_up_across_the_edge_of_a_closed_period(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet, since=T0 + 2 * HOUR, until=T0 + 4 * HOUR)
    more_facts(ledger)

    def usd(since: int, until: int) -> Decimal:
        window = (f"--since={T0 + since * HOUR:%Y-%m-%dT%H:%M}", f"--until={T0 + until * HOUR:%Y-%m-%dT%H:%M}")
        return Decimal(read_json("cost", "--fleet", fleet, *window)["total"]["usd"])

    closed = usd(2, 4)
    assert usd(0, 6) == usd(0, 2) + closed + usd(4, 6)
    assert usd(1, 3) == usd(1, 2) + usd(2, 3)
    html = stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "html")
    assert "final" not in html
    assert closed == usd(2, 3) + usd(3, 4)


def test_adjacent_closed_periods_form_one_closed_window(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet, bill("a"), until=T0 + 2 * HOUR)
    close(fleet, bill("b"), since=T0 + 2 * HOUR)
    before = written(fleet)
    more_facts(ledger)
    settings(tmp_path, shared=[])
    assert written(fleet) == before
    assert json.loads(before["json"])["state"] == "final"


def test_same_bill_counts_once(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    first = close(fleet)
    before = written(fleet)
    again = close(fleet)
    assert (again.is_refused, again.compared) == (False, first.compared)
    assert written(fleet) == before


def test_window_that_is_partly_closed_is_refused(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet, until=T0 + 2 * HOUR)
    with pytest.raises(AppError, match=r"a part of this span is closed \(2026-11-20T06:00Z to 2026-11-20T08:00Z\)"):
        close(fleet)
    close(fleet, since=T0 + 2 * HOUR)
    with ledger.connect() as connection:
        assert closed_spans(connection, FLEET) == [(T0, T0 + 2 * HOUR), (T0 + 2 * HOUR, END)]


def test_period_that_has_not_ended_is_not_closed(tmp_path: Path, ledger: Engine) -> None:
    with pytest.raises(AppError, match="is in the future: only a past span can be closed"):
        close(settings(tmp_path), until=END + 2 * HOUR)


def test_transferred_ledger_keeps_its_closed_periods(tmp_path: Path, ledger: Engine) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    before = written(fleet)
    more_facts(ledger)
    with ledger.connect() as connection:
        lines = list(transfer.export(connection, END + 10 * HOUR))
    (tmp_path / "new").mkdir()
    engine = open_ledger(f"sqlite:///{tmp_path}/new/ledger.db")
    with writing(engine) as connection:
        transfer.import_rows(connection, lines, "export")
    assert written(settings(tmp_path, ledger_url=f"sqlite:///{tmp_path}/new/ledger.db")) == before


def test_closing_again_keeps_the_declarations_of_the_first_computation(tmp_path: Path, ledger: Engine) -> None:
    close(settings(tmp_path))
    close(settings(tmp_path, shared=[]))
    with ledger.connect() as connection:
        (kept,) = declarations(connection, FLEET)
    assert "NAT gateway" in kept.content
    assert kept.at == END + timedelta(hours=1)


def test_period_closed_by_an_older_release_is_reported_as_not_frozen_until_reconciled_again(
    tmp_path: Path, ledger: Engine
) -> None:
    fleet = settings(tmp_path)
    close(fleet)
    frozen = read_json("cost", "--fleet", fleet, *WINDOW)
    assert frozen["not_frozen"] == []
    with writing(ledger) as connection:
        connection.execute(CLOSED_PERIODS.update().values(prices=None, facts=None))
    expensive = settings(tmp_path, prices={"overrides": [stated("aws:vpc:nat-gateway", "0.09")]})
    found = read_json("cost", "--fleet", expensive, *WINDOW)
    assert found["state"] == "final"
    assert found["not_frozen"] == [{"since": "2026-11-20T06:00:00Z", "until": "2026-11-20T12:00:00Z"}]
    (note,) = [note for note in found["notes"] if note.startswith("not frozen: ")]
    assert note.endswith("settings, prices and facts of today change these figures; compare it again")
    close(settings(tmp_path))
    again = read_json("cost", "--fleet", expensive, *WINDOW)
    assert again["not_frozen"] == []
    assert (again["total"], again["charges"]) == (frozen["total"], frozen["charges"])
