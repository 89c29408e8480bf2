"""HTTP client for programs on this machine: it returns a complete response within a time limit, or raises OSError.

The agent's loop must survive every error of these programs.
"""

import time
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Final, cast

MAX_BYTES: Final = 32 << 20
"""Limit of a response body. A metrics page has a few hundred kilobytes."""
_PIECE: Final = 64 << 10


def fetch(request: urllib.request.Request | str, limit_s: float) -> bytes:
    """Return the body of a successful response within `limit_s` seconds. Raises OSError; HTTPError for an error."""
    until = time.monotonic() + limit_s
    found = bytearray()
    try:
        with urllib.request.urlopen(request, timeout=limit_s) as opened:
            answer = cast("HTTPResponse", opened)
            while piece := answer.read1(_PIECE):
                found += piece
                if time.monotonic() > until or len(found) > MAX_BYTES:
                    raise TimeoutError(f"incomplete response after {len(found)} bytes and {limit_s:g} s")
            if answer.length:
                raise ConnectionError(f"the connection was closed after {len(found)} bytes of the response")
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"not a valid HTTP response: {error!r}"[:200]) from error
    return bytes(found)
