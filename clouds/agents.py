"""Node agents over HTTP: ask how they are, ask them to drain."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final

import httpx

from clouds import secrets
from clouds.deadlines import DeadlineTransport
from clouds.plain import trusting_nobody
from gpufleet.domain.activity import CloudError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Instance
from gpufleet.domain.parsed import is_map

PORT: Final = 9500
_AT_ONCE: Final = 32
LIMIT_S: Final = 5.0
"""For a whole answer: an instance that is broken into must not hold a pass byte by byte."""
LARGEST: Final = 1_000_000
"""Bytes of an answer."""


class NodeAgents:
    """The agents of a fleet. The token is fetched when it is first needed, and never written anywhere."""

    def __init__(self, token: Callable[[], str], port: int = PORT, limit_s: float = LIMIT_S) -> None:
        self._token = token
        self._port = port
        transport = DeadlineTransport(trusting_nobody(), limit_s)
        plain = {"Accept-Encoding": "identity"}
        self._client = httpx.Client(transport=transport, timeout=limit_s, trust_env=False, headers=plain)
        self._known_token: str | None = None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def statuses(self, instances: Sequence[Instance]) -> dict[str, Mapping[str, Any]]:
        """The answer of GET /status by instance; one that does not answer whole is absent."""
        if not instances:
            return {}
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(instances))) as pool:
            answers = pool.map(self._status, instances)
            return {i.id: answer for i, answer in zip(instances, answers, strict=True) if answer is not None}

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline_seconds: int) -> Mapping[str, Any]:
        """Ask to drain. Idempotent. Raises CloudError when the agent does not take it."""
        order = {"by": by.value, "reason": reason, "deadline_s": deadline_seconds}
        status, body = self._post(instance, "/drain", order)
        if status != HTTPStatus.ACCEPTED:
            raise CloudError(f"{instance.id}: its agent refused to drain ({status})")
        return self._taken(instance, body)

    def switch(self, instance: Instance, digest: str) -> Mapping[str, Any]:
        """Ask to serve another revision. Idempotent. Raises CloudError when the agent does not take it."""
        status, body = self._post(instance, "/switch", {"digest": digest})
        if status != HTTPStatus.ACCEPTED:
            words = body.decode(errors="replace")[:300].strip()
            raise CloudError(f"{instance.id}: its agent refused the revision ({status}): {words}")
        return self._taken(instance, body)

    def _post(self, instance: Instance, path: str, wish: Mapping[str, Any]) -> tuple[int, bytes]:
        if instance.private_address is None:
            raise CloudError(
                f"{instance.id}: has no private address (yet), so its agent cannot be asked; try again once it runs"
            )
        url = self._url(instance, path)
        headers = {"Authorization": f"Bearer {self._secret()}"}
        try:
            return self._answer("POST", url, headers=headers, json=wish)
        except (httpx.HTTPError, ValueError) as error:
            raise CloudError(f"{instance.id}: its agent at {url} did not answer: {error}") from error

    def _taken(self, instance: Instance, body: bytes) -> Mapping[str, Any]:
        try:
            return _object(body)
        except ValueError as error:
            raise CloudError(f"{instance.id}: its agent took the wish and gave no answer: {error}") from error

    def _status(self, instance: Instance) -> Mapping[str, Any] | None:
        if instance.private_address is None:
            return None
        try:
            status, body = self._answer("GET", self._url(instance, "/status"))
            answer = _object(body) if status == HTTPStatus.OK else None
        except (httpx.HTTPError, ValueError):
            return None
        # an address is used again by another machine sooner than one thinks
        return answer if answer is not None and answer.get("instance") == instance.id else None

    def _answer(self, method: str, url: str, **asked: Any) -> tuple[int, bytes]:
        """Status and whole body. Raises httpx.HTTPError, ValueError for a body without an end."""
        body = bytearray()
        with self._client.stream(method, url, **asked) as response:
            # as it came over the line: what is unpacked may be a thousand times as long
            for part in response.iter_raw():
                body += part
                if len(body) > LARGEST:
                    raise ValueError(f"it sent more than {LARGEST} bytes")
        return response.status_code, bytes(body)

    def _url(self, instance: Instance, path: str) -> str:
        return f"http://{instance.private_address}:{self._port}{path}"

    def _secret(self) -> str:
        if self._known_token is None:
            self._known_token = self._token()
        return self._known_token


def token(reference: str, region: str) -> Callable[[], str]:
    """The agents' token from $GPUFLEET_AGENT_TOKEN, else from where it lies (`clouds.secrets`)."""

    def fetch() -> str:
        return os.environ.get("GPUFLEET_AGENT_TOKEN") or secrets.read(reference, region)

    return fetch


def _object(answer: bytes) -> Mapping[str, Any]:
    body = json.loads(answer)
    if not is_map(body):
        raise ValueError("the answer is no JSON object")
    return body
