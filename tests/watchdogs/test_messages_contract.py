"""Contract test of the ports `Messages` and `Clock`: the outbox and the system's clock, and their fakes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from app.adapters import FleetMessages
from gpufleet.domain.clocks import Clock, WallClock
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.tables import OUTBOX
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeClock, FakeMessages
from tests.fixtures.watchdogs.plain import document
from watchdogs.ports import Messages


@dataclass
class Outbox:
    """The port, and a reader of the texts that wait for delivery."""

    messages: Messages
    texts: Callable[[], Sequence[str]]


@pytest.fixture(params=["fake", "real"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outbox]:
    if request.param == "fake":
        fleet = FakeFleet()
        yield Outbox(FakeMessages(fleet), lambda: list(fleet.messages.values()))
        return
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")

    def texts() -> Sequence[str]:
        with engine.connect() as connection:
            return list(connection.execute(select(OUTBOX.c.text).order_by(OUTBOX.c.id)).scalars())

    yield Outbox(FleetMessages(engine, document(), WallClock()), texts)
    engine.dispose()


def test_a_message_is_sent_once_per_key(outbox: Outbox) -> None:
    for key, text in (("b", "first"), ("a", "second"), ("b", "another text")):
        outbox.messages.notify(key, text, {})
    assert outbox.texts() == ["first", "second"]


def test_a_message_about_an_instance_may_offer_to_keep_it(outbox: Outbox) -> None:
    outbox.messages.notify("a", "text", {"may_keep": True, "instance": "i-1", "decision": object()})
    assert outbox.texts() == ["text"]


@pytest.mark.parametrize("clock", [FakeClock(FakeFleet()), WallClock()], ids=["fake", "real"])
def test_the_clock_is_in_utc_and_a_sleep_takes_time(clock: Clock) -> None:
    before = clock.now()
    assert before.utcoffset() == timedelta()
    clock.sleep(0)
    clock.sleep(0.01)
    assert clock.now() - before >= timedelta(seconds=0.01)
