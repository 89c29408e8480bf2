"""One HTTP request, read whole, and JSON replies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.http_server import Answer
from localcloud.callers import OWNER
from localcloud.gcp.errors import ApiError


@dataclass(slots=True, kw_only=True)
class Request:
    """One HTTP request with its whole body."""

    method: str
    path: str
    """As sent, percent signs and all."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: str = OWNER
    """The authenticated caller."""

    def json(self) -> Any:
        """Raises ApiError."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ApiError(400, "parseError", f"Invalid JSON payload received. {error}") from error


def json_reply(value: Any, status: int = 200) -> Answer:
    """A response with a JSON body."""
    return Answer(status=status, body=json.dumps(value), content_type="application/json; charset=UTF-8")
