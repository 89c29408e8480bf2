"""Node agents over HTTP: ask how they are, ask them to drain."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final

import httpx

from clouds import secrets
from clouds.plain import trusting_nobody
from fleet.activity import CloudError
from fleet.model import Instance
from fleet.parsed import is_map

PORT: Final = 9500
_AT_ONCE: Final = 32
_TIMEOUT: Final = 5.0


class NodeAgents:
    """The agents of a fleet. The token is fetched when it is first needed, and never written anywhere."""

    def __init__(self, token: Callable[[], str], port: int = PORT) -> None:
        self._token = token
        self._port = port
        self._client = httpx.Client(timeout=_TIMEOUT, trust_env=False, verify=trusting_nobody())
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

    def drain(self, instance: Instance, reason: str, deadline_seconds: int) -> Mapping[str, Any]:
        """Ask to drain. Idempotent. Raises CloudError when the agent does not take it."""
        url = self._url(instance, "/drain")
        try:
            response = self._client.post(
                url,
                headers={"Authorization": f"Bearer {self._secret()}"},
                json={"reason": reason, "deadline_s": deadline_seconds},
            )
            if response.status_code != HTTPStatus.ACCEPTED:
                raise CloudError(f"{instance.id}: its agent refused to drain ({response.status_code})")
            return _object(response)
        except (httpx.HTTPError, ValueError) as error:
            raise CloudError(f"{instance.id}: its agent at {url} did not answer: {error}") from error

    def switch(self, instance: Instance, digest: str) -> Mapping[str, Any]:
        """Ask to serve another revision. Idempotent. Raises CloudError when the agent does not take it."""
        url = self._url(instance, "/switch")
        headers = {"Authorization": f"Bearer {self._secret()}"}
        try:
            response = self._client.post(url, headers=headers, json={"digest": digest})
            if response.status_code != HTTPStatus.ACCEPTED:
                words = response.text[:300].strip()
                raise CloudError(f"{instance.id}: its agent refused the revision ({response.status_code}): {words}")
            return _object(response)
        except (httpx.HTTPError, ValueError) as error:
            raise CloudError(f"{instance.id}: its agent at {url} did not answer: {error}") from error

    def _status(self, instance: Instance) -> Mapping[str, Any] | None:
        if instance.private_address is None:
            return None
        try:
            response = self._client.get(self._url(instance, "/status"))
            answer = _object(response) if response.status_code == HTTPStatus.OK else None
        except (httpx.HTTPError, ValueError):
            return None
        # an address is used again by another machine sooner than one thinks
        return answer if answer is not None and answer.get("instance") == instance.id else None

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


def _object(response: httpx.Response) -> Mapping[str, Any]:
    body = response.json()
    if not is_map(body):
        raise ValueError("the answer is no JSON object")
    return body
