"""Contract test of the port `ConsoleData`: the data of a fleet with a feed, and `FakeConsoleData`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select

from app.console_data import LiveConsoleData
from app.errors import AppError
from app.feed import SEEN, FeedPaths, Seen
from gpufleet.console.alerts import AlertMessage
from gpufleet.console.history import Period
from gpufleet.console.server import ActionError, ConsoleData, ConsoleDataError
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import OUTBOX
from gpufleet.logs import SILENT
from gpufleet.settings.document import FleetDocument, Notify
from tests.fixtures.console.fleet import document, instance
from tests.fixtures.console.pages import FakeConsoleData

RUNNING = instance(0)
ALERT = AlertMessage(key="alert/1", text="EngineDown", firing=1, resolved=0)


@dataclass(kw_only=True)
class Data:
    data: ConsoleData
    sent: Callable[[], Sequence[str]]
    """Texts of the messages in the outbox."""


@pytest.fixture(params=["fake", "real"])
def console(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    if request.param == "fake":
        fake = FakeConsoleData()
        return Data(data=fake, sent=lambda: [notice.text for notice in fake.notified])
    fleet = document("chat").model_copy(
        update={
            "ledger_url": f"sqlite:///{tmp_path}/ledger.db",
            "notify": Notify(slack_channel="#c"),
        }
    )
    open_ledger(fleet.ledger_url).dispose()
    # without an address, no agent is asked
    seen = Seen(at=time.time(), instances=(replace(RUNNING, private_address=None),))
    FeedPaths(folder=tmp_path).instances.write_bytes(SEEN.dump_json(seen))

    def sent() -> Sequence[str]:
        engine = create_engine(fleet.ledger_url)
        with engine.connect() as connection:
            found = list(connection.execute(select(OUTBOX.c.text).order_by(OUTBOX.c.id)).scalars())
        engine.dispose()
        return found

    return Data(data=LiveConsoleData(lambda: [fleet], SILENT, tmp_path), sent=sent)


def broken() -> Sequence[FleetDocument]:
    raise AppError("the document cannot be read")


def test_a_running_instance_is_kept_and_an_unknown_one_is_an_error(console: Data) -> None:
    (view,) = console.data.views()
    assert RUNNING.id in {one.id for one in view.read.instances or ()}
    assert f"{RUNNING.id} is kept" in console.data.keep(view, RUNNING.id, "ann")
    with pytest.raises(ActionError, match="i-unknown"):
        console.data.keep(view, "i-unknown", "ann")


def test_a_pool_is_paused_and_an_unknown_one_is_an_error(console: Data) -> None:
    (view,) = console.data.views()
    assert "pool chat are paused" in console.data.pause(view, "chat", "ann")
    for scope in ("unknown", "all", RUNNING.id):
        with pytest.raises(ActionError, match=scope):
            console.data.pause(view, scope, "ann")


@pytest.mark.parametrize("period", Period)
def test_a_history_has_every_interval_of_its_period(console: Data, period: Period) -> None:
    (view,) = console.data.views()
    assert len(console.data.history(view, period).intervals) == period.intervals


def test_an_instance_without_decisions_has_none(console: Data) -> None:
    (view,) = console.data.views()
    assert list(console.data.about(view, "i-unknown")) == []


def test_the_cost_report_is_a_page_and_metrics_are_text(console: Data) -> None:
    (view,) = console.data.views()
    assert console.data.costs(view).lstrip().lower().startswith("<!doctype html>")
    assert "gpufleet_" in console.data.metrics()


def test_an_alert_is_sent_once_per_key(console: Data) -> None:
    for _ in range(2):
        console.data.notify(ALERT)
    assert list(console.sent()) == ["EngineDown"]


@pytest.mark.parametrize(
    "data",
    [FakeConsoleData(broken="the document cannot be read"), LiveConsoleData(broken, SILENT)],
    ids=["fake", "real"],
)
def test_data_that_cannot_be_read_is_an_error(data: ConsoleData) -> None:
    for call in (data.views, data.metrics, lambda: data.notify(ALERT)):
        with pytest.raises(ConsoleDataError, match="cannot be read"):
            call()
