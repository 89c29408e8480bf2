"""The control API of the embedded cloud, `/_localcloud/`: for `gpufleet local` and the tests."""

import json
from collections.abc import Mapping
from typing import Any, Final

from localcloud import places
from localcloud.control.waiting import LocalError, request_json

LIMIT_S: Final = 30.0


def ask(path: str, body: Mapping[str, Any] | None = None, *, method: str | None = None) -> Any:
    """GET `/_localcloud/<path>`, or POST when there is a body. Raises LocalError with the cloud's words."""
    url = f"{places.Places().api_url}/_localcloud/{path}"
    payload = None if body is None else json.dumps(body).encode()
    try:
        status, answer = request_json(url, payload, method or ("GET" if body is None else "POST"), LIMIT_S)
    except OSError as error:
        raise LocalError(f"the embedded cloud does not answer at {url} ({error}): run `gpufleet local up`") from error
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise LocalError(f"{url} answered with {status} and no JSON: {answer[:200]!r}") from error
    if status >= 400:
        raise LocalError(str(found.get("error", found)) if isinstance(found, dict) else str(found))
    return found
