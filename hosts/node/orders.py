"""Decides which orders the agent accepts: signed by a known key, for this instance, at the right time, only once."""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, cast

from gpufleet.domain.durations import approximate
from gpufleet.domain.files import write_atomically
from gpufleet.domain.orders import (
    MAX_CLOCK_SKEW,
    AgentOrder,
    Claim,
    OrderRefusal,
    OrderRefusedError,
    read_body,
    read_header,
)
from gpufleet.domain.rsa import PublicKey

VERSION: Final = 1
NONCES_KEPT: Final = MAX_CLOCK_SKEW * 4
"""How long a nonce is stored: longer than its order is valid (two windows), in case a clock is set back."""
MAX_NONCES: Final = 2000
"""Maximum number of stored nonces. A watchdog repeats an order in each pass; passes are seconds apart at least."""


class Nonces:
    """The nonces of recently accepted orders, stored across restarts of the agent.

    If the file cannot be read, the agent refuses orders signed before it started: they may have been accepted before.
    """

    def __init__(self, file: Path, now: Callable[[], datetime], warn: Callable[[str, str | None], None]) -> None:
        self._file, self._now, self._warn = file, now, warn
        self._lock = threading.Lock()
        self._earliest: datetime | None = None
        try:
            self._taken = _load(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._taken: dict[str, float] = {}
            self._earliest = now()

    @property
    def earliest(self) -> datetime | None:
        """Orders signed before this time are refused; None if there is no such limit."""
        return self._earliest

    def use(self, nonce: str, at: datetime) -> None:
        """Store the nonce of an order signed at `at`. Raises OrderRefusedError."""
        with self._lock:
            oldest = (self._now() - NONCES_KEPT).timestamp()
            self._taken = {key: when for key, when in self._taken.items() if when > oldest}
            if nonce in self._taken:
                raise OrderRefusedError(OrderRefusal.USED_NONCE, "this order was accepted already: sign a new one")
            if len(self._taken) >= MAX_NONCES:
                raise OrderRefusedError(
                    OrderRefusal.TOO_MANY, f"{MAX_NONCES} orders within {approximate(NONCES_KEPT)}: try again later"
                )
            self._taken[nonce] = at.timestamp()
            self._save()

    def _save(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps({"version": VERSION, "nonces": self._taken}).encode() + b"\n")
        except OSError as error:
            # A full disk must not prevent a drain; orders that cannot be read back are refused by their time.
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
            self._warn(
                "orders",
                f"{self._file}: {error.strerror}; accepted orders are remembered only until the agent restarts",
            )
        else:
            self._warn("orders", None)


def _load(file: Path) -> dict[str, float]:
    """Read the stored nonces. Raises OSError, ValueError, KeyError, TypeError, AttributeError."""
    found = cast("Mapping[str, object]", json.loads(file.read_bytes())["nonces"])
    return {str(nonce): float(cast("float", when)) for nonce, when in found.items()}


class Orders:
    """Verifies posted orders. Both steps raise OrderRefusedError; `claim` runs before the body is read."""

    def __init__(
        self, *, instance: str, keys: Sequence[PublicKey], nonces: Nonces, now: Callable[[], datetime]
    ) -> None:
        self._instance, self._nonces, self._now = instance, nonces, now
        self._keys = {key.fingerprint: key for key in keys}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the keys whose orders are accepted."""
        return tuple(self._keys)

    def claim(self, authorization: str) -> Claim:
        """Read the signature from the header. Refuse an unknown key and a signature that the key cannot have made."""
        claim = read_header(authorization)
        key = self._keys.get(claim.fingerprint)
        if key is None:
            message = (
                f"key {claim.fingerprint[:12]} is not accepted; accepted: {', '.join(k[:12] for k in self._keys)}"
            )
            raise OrderRefusedError(OrderRefusal.UNKNOWN_KEY, message)
        if not key.may_verify(claim.signature):
            raise _bad_signature()
        return claim

    def take(self, claim: Claim, body: bytes) -> AgentOrder:
        """Verify the body and return the order. Each order is accepted once."""
        if not self._keys[claim.fingerprint].verify(body, claim.signature):
            raise _bad_signature()
        order = read_body(body)
        if order.instance != self._instance:
            raise OrderRefusedError(
                OrderRefusal.OTHER_INSTANCE, f"this is {self._instance}; the order is for another instance"
            )
        self._check_time(order.at)
        self._nonces.use(order.nonce, order.at)
        return order

    def _check_time(self, at: datetime) -> None:
        now, earliest = self._now(), self._nonces.earliest
        if abs(now - at) > MAX_CLOCK_SKEW or (earliest is not None and at < earliest):
            message = f"signed at {_text(at)}; this instance's clock is at {_text(now)}"
            raise OrderRefusedError(OrderRefusal.WRONG_TIME, message, now)


def _bad_signature() -> OrderRefusedError:
    return OrderRefusedError(OrderRefusal.BAD_SIGNATURE, "the signature does not match this body and key")


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
