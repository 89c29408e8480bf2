"""More of OpenAI's client library, and hostile clients. Real HAProxy, mock replicas."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import openai
import pytest

from tests.fixtures.router.router import Router, document

BODY = b'{"model": "chat"}'
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.mark.slow
def test_many_streams_of_the_asynchronous_client_are_complete(steady: Router) -> None:
    async def one(client: openai.AsyncOpenAI, events: int) -> str:
        stream = await client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "hi"}],
            tools=TOOLS,
            stream=True,
            extra_body={"n": events, "gap_s": 0.001},
        )
        return "".join([event.choices[0].delta.content or "" async for event in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{steady.url}/v1", api_key="sk-x", max_retries=0, timeout=60
        ) as client:
            return await asyncio.gather(*(one(client, 10 * n) for n in range(1, 6)))

    # asyncio.run would remove the loop of this thread, in which other tests create Pulumi's futures
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        answer = runner.run(all_of_them())
    assert answer == ["".join(f"{event} " for event in range(10 * n)) for n in range(1, 6)]


def test_a_client_that_times_out_frees_its_replica(steady: Router) -> None:
    does = steady.replicas["i-1"].does
    does.hold = True
    try:
        with (
            openai.OpenAI(base_url=f"{steady.url}/v1", api_key="sk-x", max_retries=0, timeout=0.5) as client,
            ThreadPoolExecutor(3) as pool,
        ):
            asked = [pool.submit(client.completions.create, model="chat", prompt="x") for _ in range(3)]
            assert {type(call.exception()) for call in asked} == {openai.APITimeoutError}
        # `option abortonclose`: the engine's connection closes, too
        steady.until(lambda: _sessions(steady) == 0, "no request waits")
    finally:
        does.hold = False


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST http://router.test/v1/completions HTTP/1.1\r\nHost: router.test\r\n", 200),
        (b"POST http://other.test/v1/completions HTTP/1.1\r\nHost: router.test\r\n", 400),
        (b"POST http://router.test/metrics HTTP/1.1\r\nHost: router.test\r\n", 404),
        (b"POST /v1/../metrics HTTP/1.1\r\nHost: x\r\n", 404),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n:path: /metrics\r\n", 400),
        (b"CONNECT metadata:80 HTTP/1.1\r\nHost: metadata:80\r\n", 404),
    ],
    ids=[
        "absolute", "absolute-of-another-host", "absolute-to-metrics", "dots", "two-hosts", "space-before-colon",
        "odd-encoding", "pseudo-header", "connect",
    ],
)  # fmt: skip
def test_an_engine_reads_unusual_requests_as_the_router_does(steady: Router, head: bytes, status: int) -> None:
    before = steady.replicas["i-1"].does.requests
    assert _raw(steady, head + b"Content-Length: 17\r\nConnection: close\r\n\r\n" + BODY).startswith(
        b"HTTP/1.1 %d " % status
    )
    assert steady.replicas["i-1"].does.requests == before + (status == 200)


def test_protocol_upgrades_are_refused(steady: Router) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n"
    )
    answer = _raw(steady, head + BODY, b"completion_tokens")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "upgrade" not in steady.replicas["i-1"].does.seen[-1]["headers"], (
        "an engine never receives the h2c upgrade"
    )


def test_a_name_from_a_forwarded_header_is_removed(steady: Router) -> None:
    forged = {"x-forwarded-for": "10.9.9.9, 127.0.0.1", "forwarded": "for=10.9.9.9", "x-gpufleet-pool": "other"}
    answer = steady.chat(headers=forged)
    assert answer.headers["x-gpufleet-pool"] == "chat"
    seen = steady.replicas["i-1"].does.seen[-1]["headers"]
    assert seen["x-gpufleet-pool"] == "chat"
    assert "forwarded" not in seen
    assert seen["x-forwarded-for"].startswith("127.")


def test_forged_router_headers_of_an_engine_are_removed(steady: Router) -> None:
    forged = ("pool: other", "reason: override", "replica: i-9", "replica: i-8", "held-until: 9")
    steady.replicas["i-1"].does.extra_headers = "".join(f"X-GpuFleet-{line}\r\n" for line in forged)
    try:
        assert _ours(steady.chat()) == [("pool", "chat"), ("reason", "default"), ("replica", "i-1")]
    finally:
        steady.replicas["i-1"].does.extra_headers = ""


def test_a_held_request_and_its_engine_get_each_header_once(router: Router) -> None:
    router.fleet.written = document({"name": "chat", "model": "models/chat"})
    router.until(lambda: router.chat(model="nothing").status_code == 404, "the document is read")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(router.chat, headers={"x-model-override": "chat"})
        router.until(lambda: router.controller.activator.held() == {"chat": 1}, "it is held")
        replica = router.add("i-1")
        answer = held.result()
    assert (answer.status_code, len(answer.headers.get_list("x-request-id"))) == (200, 1)
    assert _ours(answer) == [("pool", "chat"), ("reason", "override"), ("replica", "i-1")]
    received = [line.lower() for line in replica.does.seen[-1]["head"]]
    for name in ("x-gpufleet-pool:", "authorization:", "x-request-id:", "x-forwarded-for:"):
        assert len([line for line in received if line.startswith(name)]) == 1, received


def _ours(answer: httpx.Response) -> list[tuple[str, str]]:
    """Return all headers that the router itself sets."""
    mark = "x-gpufleet-"
    return sorted((n.removeprefix(mark), v) for n, v in answer.headers.multi_items() if n.startswith(mark))


_REFUSED: Final = b"\0\0\4\3\0\0\0\0\1"
"""Start of an HTTP/2 frame that ends the first stream with an error."""
_H2: Final = ((":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/v1/completions"))


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ((*_H2, ("x-a", "b")), True),
        ((*_H2, ("x-a", "b\r\nx-model-override: chat")), False),
        ((*_H2, ("x-a", "b\nx: y")), False),
        ((*_H2, ("x-a\r\nx", "b")), False),
        ((*_H2[:3], (":path", "/v1/x HTTP/1.1\r\nx: y")), False),
        ((*_H2, (":path", "/metrics")), False),
        ((*_H2, ("x-a", "b"), (":path", "/metrics")), False),
        ((*_H2, ("transfer-encoding", "chunked")), False),
        ((*_H2, ("content-length", "5")), False),
        ((*_H2, ("X-Upper", "b")), False),
    ],
    ids=[
        "plain", "newline-in-value", "line-feed", "newline-in-name", "newline-in-path", "two-paths", "late-path",
        "encoding", "wrong-length", "upper-case",
    ],
)  # fmt: skip
def test_http_2_headers_that_http_1_would_misread_are_refused(
    steady: Router, headers: tuple[tuple[str, str], ...], taken: bool
) -> None:
    before = steady.replicas["i-1"].does.requests
    fields = b"".join(b"\0" + bytes([len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in headers)
    frames = _frame(4, 0, 0, b"") + _frame(1, 4, 1, fields) + _frame(0, 1, 1, BODY)
    answer = _raw(steady, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames, b"completion_tokens", _REFUSED)
    assert (b"completion_tokens" in answer) is taken
    assert steady.replicas["i-1"].does.requests == before + taken


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _sessions(router: Router) -> int:
    return sum(server.sessions for server in router.controller.haproxy.admin.servers())


def _raw(router: Router, request: bytes, *until: bytes) -> bytes:
    """Return the response, to its end or to one of the `until` texts."""
    address, _, port = router.url.removeprefix("http://").rpartition(":")
    found = b""
    with socket.create_connection((address, int(port)), timeout=30) as client:
        client.sendall(request)
        while not any(end in found for end in until) and (more := client.recv(65_536)):
            found += more
    return found
