"""The stop of an engine as its unit does it: SIGTERM to the main process, SIGKILL after the timeout."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import pytest

from localcloud import tiny_model
from serving import metrics
from serving.exposition import total
from tests.fixtures.vllm.servers import Server, Streams, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Start = Callable[[int], Server]


@pytest.fixture(params=["simulated", "vllm"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Start an engine with a given --shutdown-timeout."""
    if request.param == "vllm":
        request.getfixturevalue("vllm")
    tiny_model.make(tmp_path / "tiny")
    with ExitStack() as ends:

        def run(shutdown_timeout: int) -> Server:
            up: AbstractContextManager[Server] = serving(
                request.param,
                tmp_path / "tiny",
                tmp_path / f"log {shutdown_timeout}",
                *("--max-model-len", "2048", "--max-num-seqs", "32", "--shutdown-timeout", str(shutdown_timeout)),
                environment={"GPUFLEET_SIM_TOKEN_MS": "4"},
            )
            return ends.enter_context(up)

        yield run


def started_at(server: Server) -> float:
    found = total(server.page(), "process_start_time_seconds")
    assert found is not None
    return found


def test_a_drain_completes_20_streams_and_counters_restart(start: Start) -> None:
    first = start(90)
    streams = Streams(first.url, count=20, tokens=1500).start()
    until("first words", streams.all_began)
    os.kill(first.process.pid, signal.SIGTERM)
    time.sleep(0.3)
    # a draining engine still answers 200, so its health page does not show the drain
    assert httpx.get(f"{first.url}/health", timeout=30).status_code == 200
    assert first.complete("a late one").status_code == 500
    usages = streams.usages()
    assert not streams.errors
    assert [usage["completion_tokens"] for usage in usages] == [1500] * 20
    assert first.wait(60) == 0
    second = start(1)
    assert second.complete("hello").status_code == 200
    assert started_at(second) > time.time() - 600
    assert second.value(metrics.GENERATION_TOKENS) == 8
    _survive_what_does_not_end(second)


def _survive_what_does_not_end(server: Server) -> None:
    """Requests longer than the timeout: vLLM kills its core and hangs with its clients. SIGKILL ends it."""
    streams = Streams(server.url, count=24, tokens=1900, timeout_s=60).start()
    until("first words", streams.all_began)
    os.kill(server.process.pid, signal.SIGTERM)
    ended = server.wait(8)
    if ended is None:
        os.killpg(server.process.pid, signal.SIGKILL)
        assert server.wait(20) == -signal.SIGKILL
    streams.join()
    # no client waits forever, and no partial response counts as complete
    assert len(streams.usages()) + len(streams.errors) <= 24
    assert all(usage["completion_tokens"] == 1900 for usage in streams.usages())
