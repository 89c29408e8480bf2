"""Handles a click of *Keep* from either endpoint: checks it, sets the brake in the ledger, then writes the tag.

A click counts once: the transaction that sets the brake also adds the click's key to the outbox, as the key of the
answer in the thread. The brake alone keeps the instance; the tag shows it in the cloud's console.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.model import Instance
from gpufleet.ledger.database import writing
from gpufleet.ledger.operations import add_brake
from gpufleet.ledger.outbox import Message, enqueue
from gpufleet.logs import Log
from gpufleet.notify.buttons import Click

OLDEST: Final = timedelta(minutes=5)
"""An older click, or one that is more than this in the future, is treated as a replay."""
ANSWER_WITHIN_S: Final = 2.0
"""Slack gives up after three seconds."""


class InstanceTags(Protocol):
    """The instances of a fleet."""

    def instance(self, instance_id: str) -> Instance | None: ...

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the error for each instance whose tag could not be written."""
        ...


class ClickResult(StrEnum):
    """The result of a click."""

    KEPT = "kept"
    REPEATED = "was handled before"
    UNKNOWN_FLEET = "belongs to a fleet that this process does not watch"
    TOO_OLD = "is too old"
    NOT_ALLOWED = "is by a user who may not keep instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetButtons:
    """The data of one fleet that clicks need."""

    name: str
    environment: str
    channel: str
    users: frozenset[str]
    """Slack ids of the users who may keep instances."""
    engine: Engine
    inventory: InstanceTags


@dataclass(slots=True, kw_only=True)
class ClickHandler:
    """Handles clicks. Thread-safe."""

    fleets: Mapping[str, FleetButtons]
    now: Callable[[], datetime]
    deliver: Callable[[FleetButtons], None]
    """Sends the waiting messages of the outbox; must not raise."""
    log: Log
    _workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "click"))

    def submit(self, click: Click) -> Future[ClickResult]:
        """Handle the click in a worker thread. Waits less than Slack does: the answer is a message in the thread."""
        result: Future[ClickResult] = Future()
        self._workers.submit(self._work, click, result).add_done_callback(_surface)
        wait([result], ANSWER_WITHIN_S)
        return result

    def close(self) -> None:
        """Finish the accepted clicks."""
        self._workers.shutdown()

    def accept(self, click: Click) -> ClickResult:
        """Check the click and set the brake. Fast, because it makes no cloud call."""
        fleet = self.fleets.get(click.fleet)
        if fleet is None:
            return ClickResult.UNKNOWN_FLEET
        now = self.now()
        if abs(now - click.at) > OLDEST:
            return ClickResult.TOO_OLD
        if click.user not in fleet.users:
            _refuse(fleet, click, now)
            return ClickResult.NOT_ALLOWED
        text = f"keeps {click.instance} until {click.until:%Y-%m-%d %H:%M} UTC"
        with writing(fleet.engine) as connection:
            if not enqueue(connection, _answer(fleet, click, click.key, text, click.user), now):
                return ClickResult.REPEATED
            brake = Brake(
                kind=BrakeKind.KEEP, scope=click.instance, owner=f"Slack {click.user}",
                reason="Keep clicked in Slack", since=click.at, until=click.until,
            )  # fmt: skip
            add_brake(connection, fleet.name, brake)
        return ClickResult.KEPT

    def finish(self, click: Click) -> None:
        """Write the tag as `gpufleet keep` does. A failure is reported in the thread; the brake applies
        in any case.
        """
        fleet = self.fleets[click.fleet]
        try:
            found = fleet.inventory.instance(click.instance)
            # an instance without an environment was marked by a rule for orphans
            if found is None or not found.alive or found.environment not in (None, fleet.environment):
                problem = f"{click.instance} has ended already; there is nothing to keep"
            else:
                written = found.keep_tags(click.until)
                failed = fleet.inventory.tag([click.instance] if written else [], written)
                problem = "; ".join(failed.values()) and f"its tag could not be written: {'; '.join(failed.values())}"
        except OSError as error:
            problem = f"its tag could not be written: {error}"
        if problem:
            with writing(fleet.engine) as connection:
                enqueue(connection, _answer(fleet, click, f"{click.key}/tag", problem), self.now())

    def _work(self, click: Click, result: Future[ClickResult]) -> None:
        try:
            found = self.accept(click)
            result.set_result(found)
            write = self.log.info if found in (ClickResult.KEPT, ClickResult.REPEATED) else self.log.warning
            write("click", outcome=found.name.lower(), resource=click.instance, by=click.user)
            if found is ClickResult.KEPT:
                self.finish(click)
            if found in (ClickResult.KEPT, ClickResult.NOT_ALLOWED):
                self.deliver(self.fleets[click.fleet])
        except (OSError, SQLAlchemyError) as error:
            self.log.error("click", outcome="failed", resource=click.instance, error=error)
            if not result.done():
                result.set_exception(error)


def _surface(work: Future[None]) -> None:
    """Report an unexpected error of a worker thread."""
    if (error := work.exception()) is not None:
        sys.excepthook(type(error), error, error.__traceback__)


def _refuse(fleet: FleetButtons, click: Click, now: datetime) -> None:
    """Answer an unauthorized user, once per user and message."""
    text = "may not keep instances of this fleet: add the user's id to notify.keep_users in its settings"
    with writing(fleet.engine) as connection:
        key = f"{click.message_key}/no/{click.user}"[-200:]
        enqueue(connection, _answer(fleet, click, key, text, click.user), now)


def _answer(fleet: FleetButtons, click: Click, key: str, text: str, mention: str = "") -> Message:
    return Message(key=key, channel=fleet.channel, text=text, mention=mention, detail={"thread": click.message_key})
