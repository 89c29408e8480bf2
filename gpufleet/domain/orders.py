"""Orders to a node agent: what is signed, how it is written, and why an agent refuses one.

The bytes of the body are what is signed; they are never written anew before they are checked. The signature travels
beside them, in the header `Authorization`.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.parsed import is_map

VERSION: Final = 1
PATH: Final = "/orders"
"""Of the agent's HTTP API; orders are posted."""
SCHEME: Final = "GPUFleet-Order"
"""Of the header: `Authorization: GPUFleet-Order FINGERPRINT SIGNATURE`, the signature in base64."""
LARGEST: Final = 4096
"""Bytes of a body."""
WINDOW: Final = timedelta(minutes=5)
"""How far an order's time may be from the agent's clock, before or after it."""
LONGEST_DRAIN: Final = timedelta(hours=24)
_LONGEST_REASON: Final = 200
_LONGEST_HEADER: Final = 1024
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HEADER: Final = re.compile(rf"{SCHEME} ([0-9a-f]{{64}}) ([A-Za-z0-9+/]{{100,}}={{0,2}})")
_FIELDS: Final = {"version", "instance", "action", "by", "reason", "deadline_s", "digest", "at", "nonce"}


class OrderRefusal(StrEnum):
    """Why an agent refuses an order: the `code` of its answer and of its log."""

    UNSIGNED = "unsigned"
    """Without a signature, or with a header that holds none."""
    UNKNOWN_KEY = "unknown_key"
    """By a key that is not among those of its `instance.json`."""
    BAD_SIGNATURE = "bad_signature"
    TOO_LARGE = "too_large"
    NO_LENGTH = "no_length"
    """Where its body ends cannot be known."""
    MALFORMED = "malformed"
    """Signed, but nothing that an agent can do."""
    OTHER_INSTANCE = "other_instance"
    WRONG_TIME = "wrong_time"
    """Too far from the agent's clock, which its answer tells. Nothing else is wrong with it."""
    USED_NONCE = "used_nonce"
    TOO_MANY = "too_many"
    """More orders than the agent can remember; it takes orders again when the oldest are over."""
    BUSY = "busy"
    """The instance cannot change its revision now."""


class OrderRefusedError(Exception):
    """An order that an agent does not take; `now`: the agent's clock, where the order's time is all that is wrong."""

    def __init__(self, code: OrderRefusal, message: str, now: datetime | None = None) -> None:
        super().__init__(message)
        self.code, self.now = code, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Take no new request, finish what runs until the deadline, say so."""

    by: DrainOwner
    reason: str
    deadline: timedelta
    """From now on; whole seconds, a day at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Serve another revision of the model."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOrder:
    """One order to one instance."""

    instance: str
    action: Drain | Switch
    at: datetime
    """When it was signed, UTC."""
    nonce: str
    """Of this order alone: 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the header says: who signed, and the signature. Nothing of it is checked yet."""

    fingerprint: str
    signature: bytes


def body(order: AgentOrder) -> bytes:
    """The bytes to sign and to send."""
    match order.action:
        case Drain(by=by, reason=reason, deadline=deadline):
            seconds = int(deadline.total_seconds())
            wanted = {"action": "drain", "by": by.value, "reason": reason, "deadline_s": seconds, "digest": None}
        case Switch(digest=digest):
            wanted = {"action": "switch", "by": None, "reason": None, "deadline_s": None, "digest": digest}
    at = order.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps(
        {"version": VERSION, "instance": order.instance, **wanted, "at": at, "nonce": order.nonce}
    ).encode()


def header(claim: Claim) -> str:
    """The value of `Authorization`."""
    return f"{SCHEME} {claim.fingerprint} {base64.b64encode(claim.signature).decode()}"


def read_header(value: str) -> Claim:
    """The claim that a header makes. Raises OrderRefusedError."""
    found = _HEADER.fullmatch(value) if len(value) <= _LONGEST_HEADER else None
    try:
        if found is None:
            raise ValueError(value)
        return Claim(found[1], base64.b64decode(found[2], validate=True))
    except (binascii.Error, ValueError):
        message = f"orders are signed: `Authorization: {SCHEME} FINGERPRINT SIGNATURE` (`gpufleet drain` signs them)"
        raise OrderRefusedError(OrderRefusal.UNSIGNED, message) from None


def read_body(signed: bytes) -> AgentOrder:
    """The order that a body holds. Look at the signature first. Raises OrderRefusedError: MALFORMED."""
    try:
        found = json.loads(signed)
    except (ValueError, RecursionError) as error:
        raise OrderRefusedError(OrderRefusal.MALFORMED, f"the body is no JSON: {error}") from error
    try:
        return _order(found)
    except ValueError as error:
        raise OrderRefusedError(OrderRefusal.MALFORMED, str(error)) from error


def _order(found: object) -> AgentOrder:
    if not is_map(found) or set(found) != _FIELDS:
        raise ValueError(f"an order is an object with {', '.join(sorted(_FIELDS))}")
    if found["version"] != VERSION:
        raise ValueError(f"version: is {found['version']!r}, must be {VERSION}: update the older release of the two")
    instance, nonce = found["instance"], found["nonce"]
    if not isinstance(instance, str):
        raise ValueError("instance: is no id")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ValueError("nonce: is not 32 hexadecimal digits")
    return AgentOrder(instance=instance, action=_action(found), at=_moment(found["at"]), nonce=nonce)


def _action(found: Mapping[str, Any]) -> Drain | Switch:
    match found["action"]:
        case "drain":
            return Drain(by=_owner(found["by"]), reason=_reason(found), deadline=_deadline(found))
        case "switch":
            digest = found["digest"]
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise ValueError("digest: the revision's 64 characters are needed")
            return Switch(digest=digest)
        case other:
            raise ValueError(f"action: is {other!r}, must be drain or switch")


def _owner(by: object) -> DrainOwner:
    if not isinstance(by, str) or by not in list(DrainOwner):
        raise ValueError(f"by: is {by!r}, must be one of {', '.join(DrainOwner)}")
    return DrainOwner(by)


def _reason(found: Mapping[str, Any]) -> str:
    reason = found["reason"]
    if not isinstance(reason, str) or not reason.strip() or not reason.isprintable():
        raise ValueError("reason: say in a line of text why")
    return reason[:_LONGEST_REASON]


def _deadline(found: Mapping[str, Any]) -> timedelta:
    seconds = found["deadline_s"]
    whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not whole or not 0 <= seconds <= LONGEST_DRAIN.total_seconds():
        raise ValueError(f"deadline_s: is {seconds!r}, must be whole seconds, a day at most")
    return timedelta(seconds=seconds)


def _moment(text: object) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ValueError("at: is no time") from error
    if moment.tzinfo is None:
        raise ValueError("at: has no time zone")
    return moment
