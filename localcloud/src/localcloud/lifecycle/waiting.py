"""Waits with a time limit; the error names what they waited for."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final

POLL_S: Final = 0.1


class LocalError(Exception):
    """An operation on the embedded cloud failed. The message states what, the value and what to do."""


def wait_for(
    what: str,
    is_there: Callable[[], bool],
    *,
    limit_s: float,
    gave_up: Callable[[], str | None] = lambda: None,
    remedy: str,
) -> None:
    """Poll until `is_there`. Raises LocalError after `limit_s`, or at once with the reason of `gave_up`."""
    until = time.monotonic() + limit_s
    while not is_there():
        if reason := gave_up():
            raise LocalError(f"{what}: {reason}; {remedy}")
        if time.monotonic() > until:
            raise LocalError(f"{what} did not answer within {limit_s:.0f} s; {remedy}")
        time.sleep(POLL_S)


_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""An opener without proxies, for loopback."""


def answers(url: str, limit_s: float = 2.0) -> bool:
    """Whether a GET of `url` is answered with 2xx."""
    try:
        with _DIRECT.open(url, timeout=limit_s) as response:
            return 200 <= response.status < 300
    except (OSError, ValueError):
        return False


def request_json(
    url: str, body: bytes | None, method: str, limit_s: float, *, token: str | None = None
) -> tuple[int, bytes]:
    """One HTTP exchange without a proxy: status and body. Raises OSError without a response."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with _DIRECT.open(request, timeout=limit_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
