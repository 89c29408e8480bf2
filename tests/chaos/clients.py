"""Clients that retry refused connections, as the OpenAI library does."""

import time
from dataclasses import dataclass
from typing import Final

from scripts.demo.traffic import Traffic

TIMEOUT_S: Final = 120.0
"""How long a client retries a connection, and waits for a response. The OpenAI library waits for 600 s."""


@dataclass(slots=True, kw_only=True)
class PatientTraffic(Traffic):
    """Counts refused connections separately: nothing of the request was sent."""

    refused: int = 0

    def _ask(self, prompt: str, *, stream: bool) -> int:
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                # named explicitly: a dataclass with slots is a new class, and `super()` would refer to the old one
                return Traffic._ask(self, prompt, stream=stream)
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
            with self._lock:
                self.refused += 1
            time.sleep(0.2)
