"""Clients that do what the OpenAI library does by itself: a connection that nobody took is tried again."""

import time
from dataclasses import dataclass
from typing import Final

from scripts.demo.traffic import Traffic

PATIENCE_S: Final = 120.0
"""How long a client goes on trying to connect, and waits for an answer: the OpenAI library waits for 600 s."""


@dataclass(slots=True, kw_only=True)
class PatientTraffic(Traffic):
    """Counts connections that were refused apart: nothing of a request had been sent."""

    refused: int = 0

    def _ask(self, prompt: str, *, stream: bool) -> int:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                # named, since a dataclass with slots is made anew and `super()` would mean the old one
                return Traffic._ask(self, prompt, stream=stream)
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
            with self._lock:
                self.refused += 1
            time.sleep(0.2)
