"""Waits with a limit, which say what they wait for."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final

POLL_S: Final = 0.1


class LocalError(Exception):
    """The embedded cloud cannot do what was asked. Says what, the value and the remedy."""


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
"""Loopback is never reached through a proxy."""


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
    """One HTTP exchange without a proxy: status and body. Raises OSError when nobody answers."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with _DIRECT.open(request, timeout=limit_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
