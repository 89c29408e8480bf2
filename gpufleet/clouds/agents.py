"""HTTP client of the node agents: reads their status and sends them signed orders."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, Protocol

import httpx

from gpufleet.clouds.deadlines import DeadlineTransport
from gpufleet.clouds.plain_http import context_without_authorities
from gpufleet.domain import orders
from gpufleet.domain.activity import CloudError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import Instance
from gpufleet.domain.orders import AgentOrder, Claim, Drain, OrderRefusal, Switch
from gpufleet.domain.parsed import is_map

PORT: Final = 9500
_AT_ONCE: Final = 32
LIMIT_S: Final = 5.0
"""Time limit for a complete response. A compromised instance could otherwise block a run by sending single bytes."""
MAX_ANSWER_BYTES: Final = 1_000_000
"""Maximum size of a response, in bytes."""

MAX_RETRY_SKEW: Final = timedelta(hours=2)
"""Maximum difference between an agent's clock and the local one. Beyond it, no order is signed with the agent's time.

The response that contains the agent's time is not signed. An attacker on the network can therefore obtain an order
that is valid up to this much later.
"""
_LONGEST_MESSAGE: Final = 300


class Signer(Protocol):
    """The private key whose public half the agents have (`gpufleet.clouds.order_key`)."""

    def sign(self, body: bytes) -> Claim:
        """Return the signature of `body`."""
        ...


class NodeAgents:
    """Client of the agents on the instances of a fleet's pools. Other instances get no requests and no orders.

    The key is read when the first order is sent. It is never written to disk.
    """

    def __init__(
        self,
        key: Callable[[], Signer],
        port: int = PORT,
        limit_s: float = LIMIT_S,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`key` raises CloudError if it cannot be read. `warn` receives a message when an agent's clock is wrong."""
        self._key, self._now, self._warn = key, now, warn
        self._port = port
        transport = DeadlineTransport(context_without_authorities(), limit_s)
        plain = {"Accept-Encoding": "identity"}
        self._client = httpx.Client(transport=transport, timeout=limit_s, trust_env=False, headers=plain)
        self._known_key: Signer | None = None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def statuses(self, instances: Sequence[Instance]) -> dict[str, Mapping[str, Any]]:
        """The response of GET /status, by instance id.

        Instances without a complete response, and instances that belong to no pool, are absent.
        """
        members = [one for one in instances if one.pool is not None]
        if not members:
            return {}
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(members))) as pool:
            answers = pool.map(self._status, members)
            return {i.id: answer for i, answer in zip(members, answers, strict=True) if answer is not None}

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline_seconds: int) -> Mapping[str, Any]:
        """Ask the agent to drain. Idempotent. Raises CloudError if the agent does not accept the order."""
        deadline = timedelta(seconds=deadline_seconds)
        return self._give(instance, Drain(by=by, reason=reason, deadline=deadline), "refused to drain")

    def switch(self, instance: Instance, digest: str) -> Mapping[str, Any]:
        """Ask the agent to serve another revision. Idempotent. Raises CloudError if it does not accept the order."""
        return self._give(instance, Switch(digest=digest), "refused the revision")

    def _give(self, instance: Instance, action: Drain | Switch, refused: str) -> Mapping[str, Any]:
        """Sign and send an order. If the agent rejects only its time, sign and resend it with the agent's time."""
        if instance.pool is None:
            raise CloudError(
                f"{instance.id}: is not in a group of the fleet document's pools, so it cannot be given an order: "
                "`gpufleet status` lists it among the orphans"
            )
        if instance.private_address is None:
            raise CloudError(
                f"{instance.id}: has no private address yet, so its agent is unreachable; try again later"
            )
        status, body = self._post(instance, self._now(), action)
        if status != HTTPStatus.ACCEPTED and (theirs := _clock_of(body)) is not None:
            off = theirs - self._now()
            if abs(off) <= MAX_RETRY_SKEW:
                if abs(off) > orders.MAX_CLOCK_SKEW:
                    self._warn(
                        f"{instance.id}: its clock is {_ahead(off)} this machine's; the order is signed with its time"
                    )
                status, body = self._post(instance, theirs, action)
            else:
                raise CloudError(
                    f"{instance.id}: its agent {refused}: its clock is {_ahead(off)} this machine's;"
                    " correct the wrong one",
                    OrderRefusal.WRONG_TIME,
                )
        if status != HTTPStatus.ACCEPTED:
            code, message = _refusal(body)
            raise CloudError(f"{instance.id}: its agent {refused} ({status}): {message}", code)
        try:
            return _object(body)
        except ValueError as error:
            raise CloudError(
                f"{instance.id}: its agent accepted the order, but its answer is invalid: {error}"
            ) from error

    def _post(self, instance: Instance, at: datetime, action: Drain | Switch) -> tuple[int, bytes]:
        signed = orders.body(AgentOrder(instance=instance.id, action=action, at=at, nonce=secrets.token_hex(16)))
        url = self._url(instance, orders.PATH)
        headers = {"Authorization": orders.header(self._signer().sign(signed)), "Content-Type": "application/json"}
        try:
            return self._answer("POST", url, headers=headers, content=signed)
        except (httpx.HTTPError, ValueError) as error:
            raise CloudError(f"{instance.id}: its agent at {url} did not answer: {error}") from error

    def _status(self, instance: Instance) -> Mapping[str, Any] | None:
        if instance.private_address is None:
            return None
        try:
            status, body = self._answer("GET", self._url(instance, "/status"))
            answer = _object(body) if status == HTTPStatus.OK else None
        except (httpx.HTTPError, ValueError):
            return None
        # check the id: another machine may already use this address
        return answer if answer is not None and answer.get("instance") == instance.id else None

    def _answer(self, method: str, url: str, **asked: Any) -> tuple[int, bytes]:
        """HTTP status and whole body. Raises httpx.HTTPError, or ValueError for a body above `MAX_ANSWER_BYTES`."""
        body = bytearray()
        with self._client.stream(method, url, **asked) as response:
            # raw bytes: decompressed content may be a thousand times as long
            for part in response.iter_raw():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise ValueError(f"it sent more than {MAX_ANSWER_BYTES} bytes")
        return response.status_code, bytes(body)

    def _url(self, instance: Instance, path: str) -> str:
        return f"http://{instance.private_address}:{self._port}{path}"

    def _signer(self) -> Signer:
        if self._known_key is None:
            self._known_key = self._key()
        return self._known_key


def _clock_of(answer: bytes) -> datetime | None:
    """The agent's time, from a response that rejects only the time of an order; None for any other response."""
    try:
        found = _object(answer)
        now = datetime.fromisoformat(found["now"]) if found["code"] == OrderRefusal.WRONG_TIME else None
    except (ValueError, KeyError, TypeError):
        return None
    return now if now is not None and now.tzinfo is not None else None


def _refusal(answer: bytes) -> tuple[str, str]:
    """Code and message of a refusal. Both are truncated, because a compromised agent may send any text."""
    try:
        found = _object(answer)
        code, message = str(found.get("code", "")), str(found.get("error", ""))
    except ValueError:
        code, message = "", answer.decode(errors="replace")
    return code[:_LONGEST_MESSAGE], message[:_LONGEST_MESSAGE].strip()


def _ahead(off: timedelta) -> str:
    """A clock difference as text: `17 min ahead of`, `3 s behind`."""
    return f"{approximate(abs(off))} {'ahead of' if off > timedelta() else 'behind'}"


def _object(answer: bytes) -> Mapping[str, Any]:
    body = json.loads(answer)
    if not is_map(body):
        raise ValueError("the answer is not a JSON object")
    return body
