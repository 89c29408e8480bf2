"""The durable outbox: each message, by its key, reaches its channel once.

A message is `waiting` until a poster takes it (`sending`, with a token and a time, committed before the post). Then
it is `sent`, `waiting` again (it did not arrive) or still `sending` (unknown: the poster died or timed out). Messages
of a channel are sent in the order of their ids, one at a time. A message that failed `BLOCKING_ATTEMPTS` times no
longer blocks its channel: later messages are sent while it waits.

Texts are passed in as plain text and stored as Slack's markup: only this module escapes. Untrusted names, tags and
error texts can therefore neither mention people nor hide a link (Slack, "Formatting text for app surfaces").
Characters that reverse text or control a terminal are replaced.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, cast

from sqlalchemy import (
    Connection,
    Engine,
    and_,
    case,
    func,
    not_,
    select,
    update,
)

from gpufleet.domain.printable import printable
from gpufleet.ledger.database import insert_into, writing
from gpufleet.ledger.tables import EPOCH, OUTBOX

BLOCKING_ATTEMPTS: Final = 10
"""Failed attempts after which a message no longer blocks later messages of its channel: about ten minutes."""


class MessageState(StrEnum):
    """The delivery state of a message."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    REFUSED = "refused"
    """The receiver will never accept it (bad channel, bad token, bad blocks); a person must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message for people."""

    key: str
    """Identifies the message permanently, for example `digest/prod/2026-11-21`. A second message with the same key is
    dropped.
    """
    channel: str
    text: str
    """Shown in notifications and by clients without blocks. Plain text: the outbox escapes it."""
    mention: str = ""
    """Slack id of the user whom the message mentions first."""
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`blocks`: Slack blocks; `thread`: key of the message that this one answers; `files`: see notify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """A message of the outbox with its delivery state."""

    id: int
    message: Message
    created_at: datetime
    state: MessageState
    attempts: int
    not_before: datetime
    taken_at: datetime | None
    sent_at: datetime | None
    receipt: str | None
    error: str | None


def enqueue(connection: Connection, message: Message, now: datetime) -> bool:
    """Add a message to the outbox, in the caller's transaction. False: a message with that key exists already."""
    done = connection.execute(
        insert_into(connection, OUTBOX)
        .values(
            key=message.key,
            channel=message.channel,
            text=_mentioning(message.mention, escape(message.text)),
            detail=json.dumps(_escaped(message.detail), default=str, ensure_ascii=False),
            created_at=now,
            state=MessageState.WAITING.value,
            attempts=0,
            not_before=now,
        )
        .on_conflict_do_nothing(index_elements=["key"])
        .returning(OUTBOX.c.id)
    )
    return done.first() is not None


def escape(text: str) -> str:
    """Plain text as Slack's markup: the three characters that it reserves are written as entities."""
    text = printable(text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mentioning(user: str, text: str) -> str:
    if not user:
        return text
    return f"<@{user}> {text}" if _USER_ID.fullmatch(user) else f"{escape(user)} {text}"


def _escaped(detail: Any) -> Any:
    """A copy in which the text of Slack markup is escaped, and all other text is printable."""
    if isinstance(detail, Mapping):
        found = {str(key): _escaped(value) for key, value in cast(Mapping[Any, Any], detail).items()}
        if isinstance(text := found.get("text"), str):
            found["text"] = escape(text) if found.get("type") == "mrkdwn" else printable(text)
        return found
    if isinstance(detail, list | tuple):
        return [_escaped(one) for one in cast(Sequence[Any], detail)]
    return detail


@dataclass(frozen=True, slots=True)
class OutboxMessages:
    """The watchdogs' port `Messages`: one environment's channel."""

    engine: Engine
    channel: str
    now: datetime

    def notify(self, key: str, text: str, detail: Mapping[str, Any]) -> None:
        """Put a message into the outbox, once per key."""
        with writing(self.engine) as connection:
            enqueue(connection, Message(key=key, channel=self.channel, text=text, detail=detail), self.now)


def take(engine: Engine, channel: str, token: str, now: datetime, timeout: timedelta) -> OutboxEntry | None:
    """The channel's next message, now `sending` under `token`; None if there is nothing to send yet.

    A message that another poster took belongs to that poster for `timeout`. After that, it is returned with its old
    state `sending`: it may have arrived, so look it up before posting again.
    """
    with writing(engine) as connection:
        skipped = and_(OUTBOX.c.attempts >= BLOCKING_ATTEMPTS, OUTBOX.c.not_before > now)
        statement = (
            select(OUTBOX)
            .where(OUTBOX.c.channel == channel, OUTBOX.c.state.in_(_OPEN), not_(skipped))
            .order_by(OUTBOX.c.id)
            .limit(1)
        )
        if connection.dialect.name == "postgresql":
            statement = statement.with_for_update()
        row = connection.execute(statement).one_or_none()
        if row is None or row.not_before > now:
            return None
        if row.state == MessageState.SENDING and row.taken_at + timeout > now:
            return None
        found = _entry(row)
        connection.execute(
            update(OUTBOX)
            .where(OUTBOX.c.id == row.id)
            .values(state=MessageState.SENDING.value, token=token, taken_at=now, attempts=row.attempts + 1)
        )
        return found


def mark_sent(engine: Engine, message_id: int, token: str, receipt: str, now: datetime) -> None:
    """Record that it arrived. `receipt` is the receiver's id of the message."""
    _update_held(
        engine, message_id, token, state=MessageState.SENT.value, sent_at=now, receipt=receipt, error=None, token=None
    )


def mark_waiting(engine: Engine, message_id: int, token: str, not_before: datetime, error: str) -> None:
    """Record that it did not arrive. It is retried at `not_before` or later."""
    _update_held(
        engine, message_id, token, state=MessageState.WAITING.value, not_before=not_before, error=error, token=None
    )


def mark_unknown(engine: Engine, message_id: int, token: str, not_before: datetime, error: str) -> None:
    """Record that its arrival is unknown. It stays `sending` and can be taken at `not_before` or later."""
    _update_held(engine, message_id, token, taken_at=EPOCH, not_before=not_before, error=error, token=None)


def mark_refused(engine: Engine, message_id: int, token: str, error: str) -> None:
    """Record that the receiver will never accept it."""
    _update_held(engine, message_id, token, state=MessageState.REFUSED.value, error=error, token=None)


def mark_unconfirmed(engine: Engine, message_id: int, token: str, error: str) -> None:
    """Record that the delivery is given up. The message may have arrived: a retry looks it up before posting."""
    _update_held(engine, message_id, token, state=MessageState.REFUSED.value, taken_at=EPOCH, error=error, token=None)


def retry_refused(engine: Engine, now: datetime) -> int:
    """Retry refused messages, for example after a bad token was replaced. Returns their number."""
    # `mark_unconfirmed` leaves EPOCH: such a message may have arrived
    state = case((OUTBOX.c.taken_at == EPOCH, MessageState.SENDING.value), else_=MessageState.WAITING.value)
    with writing(engine) as connection:
        done = connection.execute(
            update(OUTBOX)
            .where(OUTBOX.c.state == MessageState.REFUSED.value)
            .values(state=state, not_before=now, attempts=0)
        )
        return done.rowcount


def open_channels(engine: Engine) -> tuple[str, ...]:
    """Channels with something to send, by name."""
    with engine.connect() as connection:
        rows = connection.execute(
            select(OUTBOX.c.channel).where(OUTBOX.c.state.in_(_OPEN)).distinct().order_by(OUTBOX.c.channel)
        )
        return tuple(row.channel for row in rows)


def receipt_of(engine: Engine, key: str) -> str | None:
    """The receiver's id of a sent message; None when it was not sent."""
    with engine.connect() as connection:
        return connection.execute(select(OUTBOX.c.receipt).where(OUTBOX.c.key == key)).scalar_one_or_none()


def holds(engine: Engine, key: str) -> bool:
    """Whether a message with that key was ever added to the outbox, sent or not."""
    with engine.connect() as connection:
        return connection.execute(select(OUTBOX.c.id).where(OUTBOX.c.key == key)).first() is not None


def counts(engine: Engine) -> dict[MessageState, int]:
    """How many messages are in each state."""
    with engine.connect() as connection:
        rows = connection.execute(select(OUTBOX.c.state, func.count()).group_by(OUTBOX.c.state))
        found = {row[0]: row[1] for row in rows}
    return {state: found.get(state.value, 0) for state in MessageState}


def messages(engine: Engine, states: Sequence[MessageState] = tuple(MessageState)) -> tuple[OutboxEntry, ...]:
    """Messages in those states, oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(
            select(OUTBOX).where(OUTBOX.c.state.in_([s.value for s in states])).order_by(OUTBOX.c.id)
        )
        return tuple(_entry(row) for row in rows)


_USER_ID: Final = re.compile(r"[A-Z0-9]{1,32}")
_OPEN: Final = (MessageState.WAITING.value, MessageState.SENDING.value)


def _update_held(engine: Engine, message_id: int, holder: str, /, **values: Any) -> None:
    """Update a message that this poster holds. A poster whose token was replaced changes nothing."""
    with writing(engine) as connection:
        connection.execute(update(OUTBOX).where(OUTBOX.c.id == message_id, OUTBOX.c.token == holder).values(**values))


def _entry(row: Any) -> OutboxEntry:
    return OutboxEntry(
        id=row.id,
        message=Message(key=row.key, channel=row.channel, text=row.text, detail=json.loads(row.detail)),
        created_at=row.created_at,
        state=MessageState(row.state),
        attempts=row.attempts,
        not_before=row.not_before,
        taken_at=row.taken_at,
        sent_at=row.sent_at,
        receipt=row.receipt,
        error=row.error,
    )
