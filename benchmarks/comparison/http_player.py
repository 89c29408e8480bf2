"""Plays runs on a process that serves over HTTP: a real engine, or the simulated one."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from benchmarks.comparison.player import CONTEXT, REFUSED, Exchange, Player, ScriptedRequest, contract_of
from benchmarks.comparison.running import DRAIN_S, KEY, NAME, RunningEngine
from serving import metrics
from serving.engines.reading import read
from serving.exposition import parse
from serving.metrics import Metric
from serving.releases import Version

_HEADERS: Final = {"Authorization": f"Bearer {KEY}"}
_LIMIT_S: Final = 300
_MARGIN_S: Final = 20
_GAUGES: Final = (metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.OPEN_REQUESTS)


class _Openai:
    """The API of vLLM and SGLang."""

    path = "/v1/completions"

    def body(self, request: ScriptedRequest, *, stream: bool) -> dict[str, Any]:
        dice = Random(request.number)
        # the first token differs, so no two prompts share a prefix
        prompt = [20 + request.number, *(dice.randrange(120, 500) for _ in range(request.prompt - 1))]
        sizes = {"prompt": prompt, "max_tokens": request.output, "ignore_eos": True, "temperature": 0}
        streamed = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        return {"model": NAME, **sizes, **(streamed if stream else {})}

    def tokens(self, event: Mapping[str, Any], before: int) -> int:
        usage = event.get("usage")
        if isinstance(usage, dict):
            return int(usage["completion_tokens"])  # pyright: ignore[reportUnknownArgumentType]
        return before + 1


class _Triton:
    """Triton's `generate` extension."""

    path = "/v2/models/ensemble/generate_stream"

    def body(self, request: ScriptedRequest, *, stream: bool) -> dict[str, Any]:
        return {} if request.prompt > CONTEXT else {"max_tokens": request.output}

    def tokens(self, event: Mapping[str, Any], before: int) -> int:
        return before + ("text_output" in event)


class HttpExchange(Exchange):
    """A request in a thread of its own."""

    def __init__(self, url: str, api: _Openai | _Triton, request: ScriptedRequest, *, stream: bool) -> None:
        self._request, self._api, self._stream = request, api, stream
        self._changed = threading.Condition()
        self._tokens, self._ended, self._status = 0, False, REFUSED
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=_LIMIT_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def ended(self) -> bool:
        return self._ended

    def reach(self, tokens: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._tokens >= tokens or self._ended, _LIMIT_S)

    def leave(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_LIMIT_S)

    def finish(self) -> str:
        self._thread.join(_LIMIT_S)
        return "cut" if self._status == "200" and self._tokens != self._request.output else self._status

    def _run(self) -> None:
        body = json.dumps(self._api.body(self._request, stream=self._stream))
        try:
            self._connection.request("POST", self._api.path, body, {**_HEADERS, "Content-Type": "application/json"})
            answer = self._connection.getresponse()
            self._status = str(answer.status)
            if answer.status == 200:
                self._read(answer)
        except (HTTPException, OSError):
            if self._status != REFUSED:
                self._status = "cut"
        finally:
            self._connection.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _read(self, answer: HTTPResponse) -> None:
        if not self._stream and isinstance(self._api, _Openai):
            self._tokens = self._api.tokens(json.loads(answer.read()), 0)
            return
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                self._status = "error in the stream"
                return
            with self._changed:
                self._tokens = self._api.tokens(event, self._tokens)
                self._changed.notify_all()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process ended
        return b""


class HttpPlayer(Player):
    """Plays on a process. `start` starts it, and again after a drain."""

    def __init__(
        self, kind: str, version: Version, start: Callable[[], AbstractContextManager[RunningEngine]]
    ) -> None:
        super().__init__()
        self.contract, self.version = contract_of(kind), version
        self._api = _Triton() if kind == "triton" else _Openai()
        self._start = start
        self._ends = ExitStack()
        self._engine = self._ends.enter_context(start())

    def close(self) -> None:
        """End the process."""
        self._ends.close()

    def send(self, request: ScriptedRequest, *, stream: bool = True) -> Exchange:
        return HttpExchange(self._engine.url, self._api, request, stream=stream)

    def page(self) -> str:
        path = self.contract.probes.metrics
        assert path is not None
        return httpx.get(f"{self._engine.metrics_url}{path}", headers=_HEADERS, timeout=_LIMIT_S).text

    def until_idle(self) -> None:
        """The gauges are at 0 and no counter changes: Triton has no gauge of requests that run."""
        before: dict[Metric, float] = {}

        def is_at_rest(values: dict[Metric, float]) -> bool:
            nonlocal before
            unchanged, before = values == before, values
            if not unchanged:
                time.sleep(0.4)
            return unchanged and all(values.get(gauge, 0) == 0 for gauge in _GAUGES)

        self._until(is_at_rest)

    def until_waiting(self, count: int) -> None:
        if metrics.REQUESTS_WAITING in self._values():
            self._until(lambda values: values[metrics.REQUESTS_WAITING] >= count)

    def _values(self) -> dict[Metric, float]:
        return dict(read(self.contract, self.version, parse(self.page())).values)

    def _until(self, holds: Callable[[dict[Metric, float]], bool]) -> None:
        end = time.monotonic() + max(series.lag.total_seconds() for series in self.contract.series) + _MARGIN_S
        while time.monotonic() < end:
            if holds(self._values()):
                return
            time.sleep(0.1)

    def probe(self, name: str) -> str:
        probes = self.contract.probes
        path = {"alive": probes.alive, "version": probes.version, "metrics": probes.metrics}[name]
        assert path is not None
        url = self._engine.metrics_url if name == "metrics" else self._engine.url
        with_key = name == "version" and probes.version_needs_key
        try:
            return str(httpx.get(f"{url}{path}", headers=_HEADERS if with_key else {}, timeout=60).status_code)
        except httpx.TransportError:
            return REFUSED

    def key_facts(self) -> dict[str, str]:
        if self.contract.launch is None:
            return {}
        body = self._api.body(self.request(), stream=False)
        status = httpx.post(f"{self._engine.url}{self._api.path}", json=body, timeout=60).status_code
        shown = any(KEY.encode() in _read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
        return {"without the key": str(status), "key on a command line": "yes" if shown else "no"}

    def version_text(self) -> str:
        document = httpx.get(f"{self._engine.url}{self.contract.probes.version}", headers=_HEADERS, timeout=60).json()
        return str(Version.parse(document[self.contract.probes.version_field]))

    def terminate(self) -> None:
        os.kill(self._engine.process.pid, signal.SIGTERM)
        # the signal is handled in another process, or between two iterations
        time.sleep(1)

    def exit_code(self) -> int | None:
        return self._engine.wait(DRAIN_S)

    def restart(self) -> None:
        self._ends.close()
        self._engine = self._ends.enter_context(self._start())
