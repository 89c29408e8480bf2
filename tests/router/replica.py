"""A mock replica: an engine on port 8000 and an agent check on 9501 of a loopback address of its own."""

import asyncio
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Behaviour:
    """What the replica does; tests change it while it runs."""

    agent: str = "up ready"
    health: int = 200
    status: int = 200
    delay_s: float = 0.0
    key: str = ""
    """That it asks for, as an engine does; empty: none."""
    error: str = "as told"
    """What an answer with such a status says."""
    says: str = ""
    """Headers of its answers beside the usual ones, each with its end of line."""
    hold: bool = False
    """Answer nothing until it is False again."""
    reset: bool = False
    broken: int = 0
    """Requests that it broke off, as `reset` says."""
    checks: int = 0
    """Health checks."""
    hung: bool = False
    """Connections are taken, and no health check is answered until it is False again."""
    agent_checks: int = 0
    connections: int = 0
    """Connections that brought requests, ever; health checks have their own."""
    open: int = 0
    """Those of them that are not closed yet."""
    requests: int = 0
    prompt_tokens: int = 7
    """What its answers say of the prompt."""
    running: int = 0
    most_running: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class Replica:
    """Runs in a thread of its own; a context manager."""

    def __init__(self, address: str, engine_port: int = 8000, agent_port: int = 9501) -> None:
        self.address = address
        self.does = Behaviour()
        self._ports = (engine_port, agent_port)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopped = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._walls: list[list[socket.socket]] = []
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> "Replica":
        self._thread.start()
        assert self._started.wait(5), f"no replica on {self.address}"
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Vanish, as a machine does that lost its power."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(5)
        for one in (one for wall in self._walls for one in wall):
            one.close()
        self._walls.clear()

    def vanish(self) -> None:
        """Be gone without a word: no new connection is as much as refused, open ones stay silent."""
        self.does.hold = True
        asyncio.run_coroutine_threadsafe(self._close_listeners(), self._loop).result(30)
        self._walls = [_wall(self.address, port) for port in self._ports]

    async def _close_listeners(self) -> None:
        for server in self._servers:
            server.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        engine = await asyncio.start_server(self._connection, self.address, self._ports[0], limit=2**22)
        agent = await asyncio.start_server(self._agent, self.address, self._ports[1])
        self._servers = [engine, agent]
        self._started.set()
        await self._stopped.wait()
        engine.close()
        agent.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _agent(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.does.agent_checks += 1
        if self.does.agent:
            writer.write(self.does.agent.encode() + b"\n")
        writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted = False
        try:
            while True:
                asked = await self._request(reader, writer)
                if asked and not counted:
                    counted = True
                    self.does.connections += 1
                    self.does.open += 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.does.open -= counted
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether it was a client's request, no health check."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await _body(reader, headers)
        if path == "/health":
            self.does.checks += 1
            while self.does.hung:
                await asyncio.sleep(0.01)
            await _reply(writer, self.does.health, b"")
            return False
        if self.does.reset:
            self.does.broken += 1
            writer.transport.abort()
            raise ConnectionResetError
        self.does.requests += 1
        self.does.running += 1
        self.does.most_running = max(self.does.most_running, self.does.running)
        self.does.seen.append(
            {"method": method, "path": path, "headers": headers, "head": head[1:], "body_bytes": len(body)}
        )
        try:
            await asyncio.sleep(self.does.delay_s)
            while self.does.hold:
                await asyncio.sleep(0.01)
            await self._answer(writer, path, body)
        finally:
            self.does.running -= 1
        return True

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
        try:
            asked: dict[str, Any] = json.loads(body)
        except ValueError:
            asked = {}
        if self.does.key and self.does.seen[-1]["headers"].get("authorization") != f"Bearer {self.does.key}":
            await _reply(writer, 401, b'{"error":"Unauthorized"}')
        elif self.does.status != 200:
            await _reply(writer, self.does.status, json.dumps({"error": self.does.error}).encode())
        elif path == "/v1/embeddings":
            data = [
                {"object": "embedding", "index": n, "embedding": [0.1, 0.2, 0.3]} for n in range(len(asked["input"]))
            ]
            found = {
                "object": "list",
                "model": "chat",
                "data": data,
                "usage": {"prompt_tokens": 2, "total_tokens": 2},
            }
            await _reply(writer, 200, json.dumps(found).encode())
        elif asked.get("stream"):
            await self._stream(writer, asked)
        else:
            asked_for = self.does.prompt_tokens
            usage = {"prompt_tokens": asked_for, "completion_tokens": 3, "total_tokens": asked_for + 3}
            message = {"role": "assistant", "content": f"from {self.address}"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": asked.get("model", "")}
            await _reply(
                writer, 200, json.dumps(answer | {"choices": [choice], "usage": usage}).encode(), self.does.says
            )

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        import time

        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            b"x-server: " + self.address.encode() + b"\r\n\r\n"
        )
        for number in range(int(asked.get("n", 10))):
            delta = {"index": 0, "delta": {"content": f"{number} "}, "finish_reason": None}
            event = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [delta]}
            data = b"data: " + json.dumps(event | {"sent": time.monotonic()}).encode() + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            await asyncio.sleep(float(asked.get("gap_s", 0.05)))
        data = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        await writer.drain()


def _wall(address: str, port: int) -> list[socket.socket]:
    """A listener whose queue is full: the kernel drops whoever comes, as if nobody were there."""
    listener = socket.create_server((address, port), backlog=0)
    callers = [socket.socket() for _ in range(3)]
    for caller in callers:
        caller.setblocking(False)
        caller.connect_ex((address, port))
    return [listener, *callers]


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "") == "chunked":
        body = b""
        while size := int((await reader.readline()).strip(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


async def _reply(writer: asyncio.StreamWriter, status: int, body: bytes, says: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}{says}\r\n".encode() + body)
    await writer.drain()
