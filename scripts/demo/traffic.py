"""Clients: OpenAI-style chat requests through the router, streaming and not, every one counted."""

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

TIMEOUT_S: Final = 30.0
PROMPTS: Final = (
    "how is the weather in the cloud today",
    "answer in five words what a pool is",
    "describe the quick brown fox",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the clients saw."""

    sent: int
    answered: int
    failed: int
    failures: dict[str, int]
    """Error messages by kind."""
    output_tokens: int
    slowest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One request that failed; seconds since 1970."""

    began: float
    ended: float
    message: str


@dataclass(slots=True, kw_only=True)
class Traffic:
    """`clients` threads, each with one request at a time and a short pause between two."""

    host: str
    port: int
    model: str
    clients: int = 6
    pause_s: float = 0.1
    max_tokens: int = 24
    timeout_s: float = TIMEOUT_S
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failures: list[Failure] = field(default_factory=list[Failure])
    _answered: int = 0
    _tokens: int = 0
    _slowest: float = 0.0
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def start(self) -> None:
        for number in range(self.clients):
            thread = threading.Thread(target=self._client, args=(number,), name=f"client-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> Counted:
        """Let every client finish the request it waits for. Returns the counts."""
        self._stop.set()
        for thread in self._threads:
            thread.join(self.timeout_s + 5)
        return self.counted()

    def counted(self) -> Counted:
        with self._lock:
            failed = len(self._failures)
            return Counted(
                sent=self._answered + failed,
                answered=self._answered,
                failed=failed,
                failures=dict(Counter(one.message for one in self._failures)),
                output_tokens=self._tokens,
                slowest_s=round(self._slowest, 2),
            )

    def failures(self) -> tuple[Failure, ...]:
        """Every failed request, in order of its end."""
        with self._lock:
            return tuple(self._failures)

    def _client(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            began, at = time.monotonic(), time.time()
            try:
                tokens, problem = self._ask(PROMPTS[turn % len(PROMPTS)], stream=turn % 2 == 0), None
            except (OSError, http.client.HTTPException, ValueError) as error:
                tokens, problem = 0, f"{type(error).__name__}: {error}"[:160]
            with self._lock:
                self._slowest = max(self._slowest, time.monotonic() - began)
                if problem is None:
                    self._answered += 1
                    self._tokens += tokens
                else:
                    self._failures.append(Failure(began=at, ended=time.time(), message=problem))
            turn += 1
            self._stop.wait(self.pause_s)

    def _ask(self, prompt: str, *, stream: bool) -> int:
        """One request. Returns its output tokens. Raises ValueError for anything but a whole answer."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.max_tokens,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status} {answer[:80].decode(errors='replace')}")
        usage = _streamed_usage(answer) if stream else json.loads(answer).get("usage")
        if not usage:
            raise ValueError("an answer without usage: it was cut short")
        return int(usage["completion_tokens"])


def _streamed_usage(answer: bytes) -> dict[str, Any] | None:
    lines = [line.removeprefix(b"data: ") for line in answer.splitlines() if line.startswith(b"data: ")]
    if not lines or lines[-1] != b"[DONE]":
        raise ValueError("a stream that ended before [DONE]")
    return next((found for line in lines[:-1] if (found := json.loads(line).get("usage"))), None)
