"""HTTP client of the engine on this instance."""

import json
import urllib.error
import urllib.request
from typing import Any, Final, cast

from hosts.node.local_http import fetch
from hosts.node.ports import EngineLoad, StepError
from serving.engine import Interface
from serving.exposition import parse, total

_TIMEOUT_S: Final = 2.0
_WARM_UP_TIMEOUT_S: Final = 60.0


class HttpEngine:
    """The engine at a URL."""

    def __init__(self, url: str, served_name: str, interface: Interface) -> None:
        self._url = url
        self._served_name = served_name
        self._interface = interface

    def healthy(self) -> bool:
        """Return whether the engine's health check succeeds."""
        try:
            fetch(f"{self._url}{self._interface.health_path}", _TIMEOUT_S)
        except OSError:
            return False
        return True

    def load(self) -> EngineLoad | None:
        """Return the numbers of running and waiting requests; None if the engine does not report them."""
        try:
            page = list(parse(fetch(f"{self._url}/metrics", _TIMEOUT_S).decode()))
        except (OSError, ValueError):
            return None
        running = total(page, self._interface.running.name)
        waiting = total(page, self._interface.waiting.name)
        return None if running is None or waiting is None else EngineLoad(running=running, waiting=waiting)

    def warm_up(self, key: str) -> None:
        """Send one small request, so that the first user does not wait for lazy initialization. Raises StepError."""
        body = json.dumps({"model": self._served_name, "prompt": "Hello", "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{self._url}/v1/completions", data=body, headers=headers)
        try:
            found = json.loads(fetch(request, _WARM_UP_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            body_text = error.read(300).decode(errors="replace")
            raise StepError(f"the first request returned HTTP {error.code}: {body_text}") from error
        except (OSError, ValueError) as error:
            raise StepError(f"the first request failed: {error}") from error
        if not isinstance(found, dict) or not cast("dict[str, Any]", found).get("choices"):
            raise StepError("the response to the first request contains no choices")
