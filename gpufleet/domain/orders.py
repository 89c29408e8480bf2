"""Orders to a node agent: content, format, signature, and reasons for a refusal.

The signature covers the bytes of the body; they are verified as received, without re-encoding. The signature is in
the header `Authorization`.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from gpufleet.domain.clocks import rfc3339
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.parsed import is_map

VERSION: Final = 1
PATH: Final = "/orders"
"""Path in the agent's HTTP API to which orders are posted."""
SCHEME: Final = "GPUFleet-Order"
"""Scheme of the header: `Authorization: GPUFleet-Order FINGERPRINT SIGNATURE`, with the signature in base64."""
MAX_BODY_BYTES: Final = 4096
"""Maximum bytes of a body."""
MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Maximum difference between an order's time and the agent's clock, in both directions."""
MAX_DRAIN: Final = timedelta(hours=24)
_MAX_REASON_CHARS: Final = 200
_MAX_HEADER_CHARS: Final = 1024
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HEADER: Final = re.compile(rf"{SCHEME} ([0-9a-f]{{64}}) ([A-Za-z0-9+/]{{100,}}={{0,2}})")
_FIELDS: Final = {"version", "instance", "action", "by", "reason", "deadline_s", "digest", "at", "nonce"}


class OrderRefusal(StrEnum):
    """Why an agent refuses an order: the `code` in its answer and in its log."""

    UNSIGNED = "unsigned"
    """The order has no header, or the header contains no signature."""
    UNKNOWN_KEY = "unknown_key"
    """The key is not one of those in the instance's `instance.json`."""
    BAD_SIGNATURE = "bad_signature"
    TOO_LARGE = "too_large"
    NO_LENGTH = "no_length"
    """The length of the body is unknown."""
    MALFORMED = "malformed"
    """The signature is valid, but the content is not."""
    OTHER_INSTANCE = "other_instance"
    WRONG_TIME = "wrong_time"
    """The order's time differs too much from the agent's clock, which the answer contains. All else is valid."""
    USED_NONCE = "used_nonce"
    TOO_MANY = "too_many"
    """The agent cannot store more nonces; it accepts orders again when the oldest ones have expired."""
    BUSY = "busy"
    """The instance cannot switch its revision now."""


class OrderRefusedError(Exception):
    """An agent refuses an order. `now`: the agent's clock, if only the order's time is wrong."""

    def __init__(self, code: OrderRefusal, message: str, now: datetime | None = None) -> None:
        super().__init__(message)
        self.code, self.now = code, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Accept no new requests, finish running ones until the deadline, then report `drained`."""

    by: DrainOwner
    reason: str
    deadline: timedelta
    """Time from now; whole seconds, at most one day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Serve another revision of the model."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOrder:
    """An order to one instance."""

    instance: str
    action: Drain | Switch
    at: datetime
    """Time of the signature, UTC."""
    nonce: str
    """Unique to this order: 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of the header, not verified: the signer's key and the signature."""

    fingerprint: str
    signature: bytes


def body(order: AgentOrder) -> bytes:
    """Return the bytes to sign and to send."""
    match order.action:
        case Drain(by=by, reason=reason, deadline=deadline):
            seconds = int(deadline.total_seconds())
            wanted = {"action": "drain", "by": by.value, "reason": reason, "deadline_s": seconds, "digest": None}
        case Switch(digest=digest):
            wanted = {"action": "switch", "by": None, "reason": None, "deadline_s": None, "digest": digest}
    at = rfc3339(order.at)
    return json.dumps(
        {"version": VERSION, "instance": order.instance, **wanted, "at": at, "nonce": order.nonce}
    ).encode()


def header(claim: Claim) -> str:
    """Return the value of `Authorization`."""
    return f"{SCHEME} {claim.fingerprint} {base64.b64encode(claim.signature).decode()}"


def read_header(value: str) -> Claim:
    """Parse the header. Raises OrderRefusedError."""
    found = _HEADER.fullmatch(value) if len(value) <= _MAX_HEADER_CHARS else None
    try:
        if found is None:
            raise ValueError(value)
        return Claim(found[1], base64.b64decode(found[2], validate=True))
    except (binascii.Error, ValueError):
        message = f"orders are signed: `Authorization: {SCHEME} FINGERPRINT SIGNATURE` (`gpufleet drain` signs them)"
        raise OrderRefusedError(OrderRefusal.UNSIGNED, message) from None


def read_body(signed: bytes) -> AgentOrder:
    """Parse the body. Verify the signature first. Raises OrderRefusedError (MALFORMED)."""
    try:
        found = json.loads(signed)
    except (ValueError, RecursionError) as error:
        raise OrderRefusedError(OrderRefusal.MALFORMED, f"the body is not JSON: {error}") from error
    try:
        return _order(found)
    except ValueError as error:
        raise OrderRefusedError(OrderRefusal.MALFORMED, str(error)) from error


def _order(found: object) -> AgentOrder:
    if not is_map(found) or set(found) != _FIELDS:
        raise ValueError(f"an order is an object with {', '.join(sorted(_FIELDS))}")
    if found["version"] != VERSION:
        raise ValueError(f"version: is {found['version']!r}, must be {VERSION}: upgrade the older release")
    instance, nonce = found["instance"], found["nonce"]
    if not isinstance(instance, str):
        raise ValueError(f"instance: expected an instance id as text, got {instance!r:.80}")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ValueError("nonce: expected 32 hexadecimal digits")
    return AgentOrder(instance=instance, action=_action(found), at=_moment(found["at"]), nonce=nonce)


def _action(found: Mapping[str, Any]) -> Drain | Switch:
    match found["action"]:
        case "drain":
            return Drain(by=_owner(found["by"]), reason=_reason(found), deadline=_deadline(found))
        case "switch":
            digest = found["digest"]
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise ValueError("digest: expected the 64 hexadecimal digits of a revision")
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
        raise ValueError("reason: expected one line of printable text")
    return reason[:_MAX_REASON_CHARS]


def _deadline(found: Mapping[str, Any]) -> timedelta:
    seconds = found["deadline_s"]
    whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not whole or not 0 <= seconds <= MAX_DRAIN.total_seconds():
        raise ValueError(f"deadline_s: is {seconds!r}, must be whole seconds, a day at most")
    return timedelta(seconds=seconds)


def _moment(text: object) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ValueError("at: is not a time in ISO 8601") from error
    if moment.tzinfo is None:
        raise ValueError("at: has no time zone")
    return moment
