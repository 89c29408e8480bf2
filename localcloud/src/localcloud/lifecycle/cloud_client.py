"""A client of the admin API, `/_localcloud/`, for `gpufleet local` and the demo. It asks for the selected cloud."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from gpufleet.toolchain.folders import find_folders
from localcloud import addresses
from localcloud.documents import is_document
from localcloud.lifecycle.environment import token_of
from localcloud.lifecycle.selected_cloud import chosen
from localcloud.lifecycle.waiting import LocalError, request_json

LIMIT_S: Final = 30.0


def ask(path: str, body: Mapping[str, Any] | None = None, *, method: str | None = None) -> Any:
    """GET `/_localcloud/<path>`, or POST when there is a body. Raises LocalError with the API's error message."""
    where, folders = addresses.Places(), find_folders(os.environ)
    token = token_of(folders)
    url = f"{where.api_url}/_localcloud/{path}?cloud={chosen(folders)}"
    payload = None if body is None else json.dumps(body).encode()
    try:
        asked = method or ("GET" if body is None else "POST")
        status, answer = request_json(url, payload, asked, LIMIT_S, token=token)
    except OSError as error:
        raise LocalError(f"the embedded cloud does not answer at {url} ({error}): run `gpufleet local up`") from error
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise LocalError(f"{url} answered with {status} and no JSON: {answer[:200]!r}") from error
    if status >= 400:
        raise LocalError(str(found.get("error", found)) if is_document(found) else str(found))
    return found
