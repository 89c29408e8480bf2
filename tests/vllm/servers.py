"""An engine in a process of its own, the real one or the simulated one, and clients that stream from it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from serving.exposition import Sample, parse, total
from serving.metrics import Metric
from tests import signing

CLONE = Path(__file__).parents[2]
MODULES = {"simulated": "localcloud.engine", "vllm": "localcloud.vllm"}
KEY = signing.ENGINE_KEY
"""Clients here say it; an engine without a key does not care."""
START_LIMIT_S = 400
"""vLLM needs 13 s on two quiet cores; cores are seldom quiet."""


def until(what: str, look: Callable[[], Any], limit_s: float = 60) -> Any:
    """Look until there is something. Fails with `what` at the limit."""
    end = time.monotonic() + limit_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {limit_s:.0f} s"
        time.sleep(0.05)


@dataclass(slots=True, kw_only=True)
class Server:
    """A running engine."""

    kind: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def page(self) -> list[Sample]:
        return list(parse(self.text()))

    def text(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=30).text

    def value(self, metric: Metric, **labels: str) -> float:
        """The sum of a metric's series with these labels; a missing one is an error."""
        page = [s for s in self.page() if labels.items() <= s.labels.items()]
        found = total(page, metric.name)
        assert found is not None, f"{metric.name} is not served"
        return found

    def complete(self, prompt: str, authorization: str | None = f"Bearer {KEY}", **more: Any) -> httpx.Response:
        headers = {"Authorization": authorization} if authorization is not None else {}
        wish = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, **more}
        return httpx.post(f"{self.url}/v1/completions", json=wish, headers=headers, timeout=120)

    def healthy(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def wait(self, limit_s: float) -> int | None:
        """Its exit code; None when it has not ended by then."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(
    kind: str, model: Path, log: Path, *args: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """An engine that is healthy, and its end."""
    port = free_port()
    command = [sys.executable, "-m", MODULES[kind], "serve", str(model), "--served-model-name", "tiny"]
    with log.open("wb") as words:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), *args],
            cwd=CLONE,
            stdout=words,
            stderr=words,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    server = Server(kind=kind, url=f"http://127.0.0.1:{port}", process=process, log=log)
    try:
        until("a healthy engine", server.healthy, START_LIMIT_S)
        yield server
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@dataclass(slots=True)
class Streams:
    """Clients that stream an answer each."""

    url: str
    count: int
    tokens: int
    model: str = "tiny"
    timeout_s: float = 120
    key: str = KEY
    events: dict[int, list[dict[str, Any]]] = field(default_factory=dict[int, list[dict[str, Any]]])
    errors: list[BaseException] = field(default_factory=list[BaseException])
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _leave: threading.Event = field(default_factory=threading.Event)

    def start(self) -> "Streams":
        self._threads = [threading.Thread(target=self._one, args=(n,), daemon=True) for n in range(self.count)]
        for thread in self._threads:
            thread.start()
        return self

    def _one(self, number: int) -> None:
        wish = {
            "model": self.model,
            "prompt": f"question number {number} of the day",
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            url, headers = f"{self.url}/v1/completions", {"Authorization": f"Bearer {self.key}"}
            with httpx.stream("POST", url, json=wish, headers=headers, timeout=self.timeout_s) as answer:
                answer.raise_for_status()
                for line in answer.iter_lines():
                    if self._leave.is_set():
                        return
                    if line.startswith("data: {"):
                        self.events.setdefault(number, []).append(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            self.errors.append(error)

    def all_began(self) -> bool:
        """Whether each has got a first word."""
        return len(self.events) == self.count or bool(self.errors)

    def hang_up(self) -> None:
        """Every client leaves in the middle."""
        self._leave.set()
        self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(self.timeout_s)

    def usages(self) -> list[dict[str, Any]]:
        """The usage that each answer ended with, after all have ended."""
        self.join()
        return [events[-1]["usage"] for events in self.events.values() if events[-1].get("usage")]
