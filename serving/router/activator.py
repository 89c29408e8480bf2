"""Holds requests of pools without a ready replica, and forwards them when the first replica is ready.

HAProxy sends a request here when no other server of the pool can take it (this is the pool's `backup` server). The
activator returns the request to HAProxy through a separate socket, so that only HAProxy does balancing and checks. It
also serves the controller's metrics.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from serving.router.error_pages import busy
from serving.router.settings import ACTIVATOR_SOCKET, INNER_SOCKET, METRICS_SOCKET

HELD_UNTIL: Final = "x-gpufleet-held-until"
"""Header with the deadline (Unix seconds) of a held request, for the case that HAProxy sends it here again."""
_MAX_HEAD: Final = 64 * 1024
_MAX_HELD_BODY: Final = 1024 * 1024
_CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRules:
    """The limits of held requests in one pool."""

    most: int
    seconds: float


@dataclass(slots=True)
class _Pool:
    rules: HoldRules
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0


class Activator:
    """A thread that serves two sockets in the router's folder."""

    def __init__(self, folder: Path, metrics: Callable[[], str], clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._metrics = metrics
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._started = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._main, name="activator", daemon=True)

    def start(self) -> None:
        """Start the thread; return when both sockets exist. Raises OSError."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the thread. HAProxy answers held requests with 503."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(5)

    def held(self) -> Mapping[str, int]:
        """Return the number of requests held now, by pool."""
        return {name: pool.held for name, pool in self._pools.copy().items()}

    def update(self, rules: Mapping[str, HoldRules], ready: Mapping[str, int]) -> None:
        """Set the pools' limits, and the number of ready replicas of each pool."""
        self._loop.call_soon_threadsafe(self._update, dict(rules), dict(ready))

    def _update(self, rules: Mapping[str, HoldRules], ready: Mapping[str, int]) -> None:
        for name, hold in rules.items():
            pool = self._pools.setdefault(name, _Pool(hold))
            pool.rules = hold
            if ready.get(name, 0) > 0:
                pool.ready.set()
            else:
                pool.ready.clear()
        for name in self._pools.keys() - rules.keys():
            if self._pools[name].held == 0:
                del self._pools[name]

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._started.set()
            self._loop.close()

    async def _serve(self) -> None:
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)  # the system limits the length of a socket's path
        try:
            servers: list[asyncio.Server] = []
            for name, handler in ((ACTIVATOR_SOCKET, self._hold), (METRICS_SOCKET, self._serve_metrics)):
                (self._folder / name).unlink(missing_ok=True)
                path = f"/proc/self/fd/{folder}/{name}"
                servers.append(await asyncio.start_unix_server(handler, path, limit=_MAX_HEAD))
                (self._folder / name).chmod(0o600)
            self._started.set()
            await self._stopped.wait()
            for server in servers:
                server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            os.close(folder)

    async def _serve_metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            body = self._metrics().encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass
        finally:
            writer.close()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            await self._hold_request(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the client or HAProxy disconnected
        finally:
            writer.close()

    async def _hold_request(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = _headers(head)
        pool = self._pools.get(headers.get("x-gpufleet-pool", ""))
        if pool is None or pool.held >= pool.rules.most:
            await _refuse(writer, "No replica of this model is ready, and many requests wait for one.", 10)
            return
        until = _number(headers.get(HELD_UNTIL)) or self._clock() + pool.rules.seconds
        body = _Body(reader)
        pool.held += 1
        try:
            ready = await self._wait(pool, body, until)
        finally:
            pool.held -= 1
        if ready:
            await self._forward(head, until, body, reader, writer)
        elif not body.disconnected:
            await _refuse(writer, "No replica of this model became ready in time.", 30)

    async def _wait(self, pool: _Pool, body: "_Body", until: float) -> bool:
        """Return True when the pool is ready; False after the deadline or when the client disconnected."""
        waits: list[asyncio.Task[object]] = [
            asyncio.create_task(pool.ready.wait()),
            asyncio.create_task(body.collect()),
        ]
        try:
            limit = max(until - self._clock(), 0)
            await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            return pool.ready.is_set() and not body.disconnected
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _forward(
        self, head: bytes, until: float, body: "_Body", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            inner, outer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{INNER_SOCKET}")
        finally:
            os.close(folder)
        marked = head[:-2] + f"{HELD_UNTIL}: {until:.0f}\r\nconnection: close\r\n\r\n".encode()
        try:
            outer.write(marked + bytes(body.data))
            await outer.drain()
            await _until_answered(
                asyncio.create_task(_copy(reader, outer)), asyncio.create_task(_copy(inner, writer))
            )
        finally:
            outer.close()


class _Body:
    """The part of a held request's body that has arrived. `disconnected`: the client has closed the connection."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.data = bytearray()
        self.disconnected = False

    async def collect(self) -> None:
        """Read until the client disconnects. The part above the limit stays in the sockets until it is forwarded."""
        while len(self.data) < _MAX_HELD_BODY:
            chunk = await self._reader.read(_CHUNK)
            if not chunk:
                self.disconnected = True
                return
            self.data += chunk
        await asyncio.Event().wait()


async def _until_answered(asking: asyncio.Task[None], answering: asyncio.Task[None]) -> None:
    """Wait for the response, or until the client disconnects. Then cancel both copies, so no work is wasted."""
    try:
        await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and asking.exception() is not None:
            await answering  # an early response: the engine no longer reads the request
    finally:
        asking.cancel()
        answering.cancel()
        await asyncio.gather(asking, answering, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, message: str, retry_after: int) -> None:
    body = busy(message, "no_replica_ready").encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {retry_after}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
