"""Answers of the programs beside the agent: whole and in time, or an OSError. The agent's loop must outlive them."""

import time
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Final, cast

MOST_BYTES: Final = 32 << 20
"""A page of metrics has a few hundred kilobytes."""
_PIECE: Final = 64 << 10


def fetch(wish: urllib.request.Request | str, limit_s: float) -> bytes:
    """The body of a good answer, within `limit_s` seconds. Raises OSError; HTTPError for a refusal."""
    until = time.monotonic() + limit_s
    found = bytearray()
    try:
        with urllib.request.urlopen(wish, timeout=limit_s) as opened:
            answer = cast("HTTPResponse", opened)
            while piece := answer.read1(_PIECE):
                found += piece
                if time.monotonic() > until or len(found) > MOST_BYTES:
                    raise TimeoutError(f"no end of its answer after {len(found)} bytes and {limit_s:g} s")
            if answer.length:
                raise ConnectionError(f"its answer broke off after {len(found)} bytes")
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"its answer is no HTTP: {error!r}"[:200]) from error
    return bytes(found)
