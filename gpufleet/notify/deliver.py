"""Delivers the outbox to a receiver: each key once, each channel in order, even if a process dies at any time."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from gpufleet.domain.clocks import Clock
from gpufleet.ledger import outbox
from gpufleet.ledger.outbox import MessageState, OutboxEntry
from gpufleet.notify.slack import Arrived, LookUpRefusedError, Receiver, Refused, TryLater, Unknown

SENDING_TIMEOUT: Final = timedelta(seconds=60)
"""How long a message stays reserved for the process that sends it: longer than the longest call."""

LOOK_UP_DELAY: Final = timedelta(seconds=5)
"""The delay between a post with an unknown result and its look-up, so that a message that was accepted late is found.
"""

CLOCKS_APART: Final = timedelta(minutes=5)
"""The maximum by which the local clock may be ahead of the receiver's."""

REFUSED_LOOK_UPS: Final = 3
"""Number of permanently refused look-ups. Afterwards the message is posted again, marked as a possible repeat."""
FAILED_LOOK_UPS: Final = 12
"""The same for look-ups that fail in another way: about half an hour."""
MAX_UNCLEAR: Final = 60
"""Attempts after which an unconfirmed message is given up (`gpufleet slack retry` sends it again)."""
FIRST_WAIT: Final = timedelta(seconds=1)
MAX_RETRY_DELAY: Final = timedelta(minutes=5)


@dataclass(slots=True, kw_only=True)
class Delivered:
    """The results of one delivery."""

    sent: int = 0
    found: int = 0
    """Messages that the look-up found: they had arrived before."""
    later: int = 0
    refused: int = 0
    possible_repeats: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Delivers messages."""

    engine: Engine
    receiver: Receiver
    now: Callable[[], datetime]
    sending_timeout: timedelta = SENDING_TIMEOUT
    look_up_delay: timedelta = LOOK_UP_DELAY

    def run(self, most: int = 1000) -> Delivered:
        """Send what can be sent now, at most `most` posts per channel. Channels do not wait for each other."""
        done = Delivered()
        for channel in outbox.open_channels(self.engine):
            for _ in range(most):
                if not self._next(channel, done):
                    break
        return done

    def _next(self, channel: str, done: Delivered) -> bool:
        """Handle one message of a channel. False when the channel has nothing to do now."""
        token = uuid.uuid4().hex
        taken = outbox.take(self.engine, channel, token, self.now(), self.sending_timeout)
        if taken is None:
            return False
        repeat = False
        if taken.state is MessageState.SENDING:  # an earlier attempt may have arrived
            if self.receiver.can_look_up:
                handled = self._look_up(taken, token, done)
                if handled is not None:
                    return handled
            else:
                repeat = True
        return self._post(taken, token, done, repeat=repeat)

    def _look_up(self, taken: OutboxEntry, token: str, done: Delivered) -> bool | None:
        """Look up a message with an unknown result. None: it did not arrive, so it must be posted."""
        try:
            since = taken.created_at - CLOCKS_APART
            receipt = self.receiver.look_up(taken.message.channel, taken.message.key, since)
        except OSError as error:
            most = REFUSED_LOOK_UPS if isinstance(error, LookUpRefusedError) else FAILED_LOOK_UPS
            if taken.attempts > most:
                return self._post(taken, token, done, repeat=True)
            outbox.mark_unknown(self.engine, taken.id, token, self._after(taken, None), str(error))
            done.later += 1
            return False
        if receipt is None:
            return None
        outbox.mark_sent(self.engine, taken.id, token, receipt, self.now())
        done.found += 1
        return True

    def _post(self, taken: OutboxEntry, token: str, done: Delivered, *, repeat: bool) -> bool:
        message = taken.message
        parent = message.detail.get("thread")
        thread = outbox.receipt_of(self.engine, str(parent)) if parent else None
        text = f"(possible repeat) {message.text}" if repeat else message.text
        answer = self.receiver.post(message.channel, message.key, text, message.detail, thread)
        match answer:
            case Arrived(receipt=receipt):
                outbox.mark_sent(self.engine, taken.id, token, receipt, self.now())
                done.sent += 1
                done.possible_repeats += repeat
                return True
            case TryLater(error=error, after=after):
                outbox.mark_waiting(self.engine, taken.id, token, self._after(taken, after), error)
                done.later += 1
                return False
            case Unknown(error=error) if taken.attempts >= MAX_UNCLEAR:
                outbox.mark_unconfirmed(self.engine, taken.id, token, f"delivery was never confirmed: {error}")
                done.refused += 1
                return True
            case Unknown(error=error):
                outbox.mark_unknown(self.engine, taken.id, token, self.now() + self.look_up_delay, error)
                done.later += 1
                return False
            case Refused(error=error):
                outbox.mark_refused(self.engine, taken.id, token, error)
                done.refused += 1
                return True

    def _after(self, taken: OutboxEntry, asked: timedelta | None) -> datetime:
        """The time of the next attempt: as the receiver requested, else with a doubled delay."""
        if asked is not None:
            return self.now() + asked
        return self.now() + min(FIRST_WAIT * 2 ** min(taken.attempts, 10), MAX_RETRY_DELAY)


def deliver(engine: Engine, receiver: Receiver, now: Callable[[], datetime]) -> Delivered:
    """Send the waiting messages of the outbox that can be sent now."""
    return Delivery(engine=engine, receiver=receiver, now=now).run()


def deliver_until_empty(engine: Engine, receiver: Receiver, clock: Clock, limit: timedelta) -> Delivered:
    """Send until the outbox is empty or `limit` has passed. Waits as receivers request."""
    whole, end = Delivered(), clock.now() + limit
    while True:
        done = deliver(engine, receiver, clock.now)
        whole.sent += done.sent
        whole.found += done.found
        whole.refused += done.refused
        whole.possible_repeats += done.possible_repeats
        if not outbox.open_channels(engine):
            return whole
        if clock.now() >= end:
            whole.later = sum(
                n for s, n in outbox.counts(engine).items() if s in (MessageState.WAITING, MessageState.SENDING)
            )
            return whole
        clock.sleep(0.5)
