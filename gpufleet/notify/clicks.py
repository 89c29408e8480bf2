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
    REPEATED = "came before"
    UNKNOWN_FLEET = "is of a fleet that is not watched here"
    TOO_OLD = "is too old"
    NOT_ALLOWED = "is of somebody who may not keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetButtons:
    """The data of one fleet that clicks need."""

    fleet: str
    environment: str
    channel: str
    users: frozenset[str]
    """Slack ids of the users who may keep instances."""
    engine: Engine
    inventory: InstanceTags


@dataclass(slots=True, kw_only=True)
class ClickHandler:
    """Handles clicks. Thread-safe."""

    desks: Mapping[str, FleetButtons]
    now: Callable[[], datetime]
    deliver: Callable[[FleetButtons], None]
    """Sends the waiting messages of the outbox; must not raise."""
    log: Log
    _workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "press"))

    def submit(self, press: Click) -> Future[ClickResult]:
        """Handle the click in a worker thread. Waits less than Slack does: the answer is a message in the thread."""
        verdict: Future[ClickResult] = Future()
        self._workers.submit(self._work, press, verdict).add_done_callback(_surface)
        wait([verdict], ANSWER_WITHIN_S)
        return verdict

    def close(self) -> None:
        """Finish the accepted clicks."""
        self._workers.shutdown()

    def accept(self, press: Click) -> ClickResult:
        """Check the click and set the brake. Fast, because it makes no cloud call."""
        desk = self.desks.get(press.fleet)
        if desk is None:
            return ClickResult.UNKNOWN_FLEET
        now = self.now()
        if abs(now - press.at) > OLDEST:
            return ClickResult.TOO_OLD
        if press.user not in desk.users:
            _refuse(desk, press, now)
            return ClickResult.NOT_ALLOWED
        text = f"keeps {press.instance} until {press.until:%Y-%m-%d %H:%M} UTC"
        with writing(desk.engine) as connection:
            if not enqueue(connection, _answer(desk, press, press.key, text, press.user), now):
                return ClickResult.REPEATED
            brake = Brake(
                kind=BrakeKind.KEEP, scope=press.instance, owner=f"Slack {press.user}",
                reason="Keep pressed in Slack", since=press.at, until=press.until,
            )  # fmt: skip
            add_brake(connection, desk.fleet, brake)
        return ClickResult.KEPT

    def finish(self, press: Click) -> None:
        """Write the tag as `gpufleet keep` does. A failure is reported in the thread; the brake applies
        in any case.
        """
        desk = self.desks[press.fleet]
        try:
            found = desk.inventory.instance(press.instance)
            # an instance without an environment was marked by a rule for orphans
            if found is None or not found.alive or found.environment not in (None, desk.environment):
                problem = f"{press.instance} has ended already; there is nothing to keep"
            else:
                written = found.keep_tags(press.until)
                failed = desk.inventory.tag([press.instance] if written else [], written)
                problem = "; ".join(failed.values()) and f"its tag could not be written: {'; '.join(failed.values())}"
        except OSError as error:
            problem = f"its tag could not be written: {error}"
        if problem:
            with writing(desk.engine) as connection:
                enqueue(connection, _answer(desk, press, f"{press.key}/tag", problem), self.now())

    def _work(self, press: Click, verdict: Future[ClickResult]) -> None:
        try:
            found = self.accept(press)
            verdict.set_result(found)
            write = self.log.info if found in (ClickResult.KEPT, ClickResult.REPEATED) else self.log.warning
            write("click", outcome=found.name.lower(), resource=press.instance, by=press.user)
            if found is ClickResult.KEPT:
                self.finish(press)
            if found in (ClickResult.KEPT, ClickResult.NOT_ALLOWED):
                self.deliver(self.desks[press.fleet])
        except (OSError, SQLAlchemyError) as error:
            self.log.error("click", outcome="failed", resource=press.instance, error=error)
            if not verdict.done():
                verdict.set_exception(error)


def _surface(work: Future[None]) -> None:
    """Report an unexpected error of a worker thread."""
    if (error := work.exception()) is not None:
        sys.excepthook(type(error), error, error.__traceback__)


def _refuse(desk: FleetButtons, press: Click, now: datetime) -> None:
    """Answer an unauthorized user, once per user and message."""
    text = "may not keep instances of this fleet: add the id to notify.keep_users in its settings"
    with writing(desk.engine) as connection:
        key = f"{press.message_key}/no/{press.user}"[-200:]
        enqueue(connection, _answer(desk, press, key, text, press.user), now)


def _answer(desk: FleetButtons, press: Click, key: str, text: str, mention: str = "") -> Message:
    return Message(key=key, channel=desk.channel, text=text, mention=mention, detail={"thread": press.message_key})
