"""An object store on loopback that can misbehave: what S3 answers, and what it answers on bad days."""

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PIECE = 64 * 1024


class Day(StrEnum):
    """How the store is today."""

    GOOD = "good"
    THROTTLES = "503 SlowDown"
    RESETS = "resets in the middle of a body"
    ENDS_EARLY = "closes before the body is whole"
    IGNORES_RANGES = "sends the whole object"
    FLIPS_BITS = "one bit of a body is wrong"
    REFUSES = "403"


@dataclass(slots=True)
class Trap:
    """Calls `then` once, before the byte of number `after` of all bodies is sent; that byte is never sent."""

    after: int
    then: Callable[[], None]
    sent: int = 0
    sprung: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def allows(self, count: int) -> int:
        """How many of the next `count` bytes may be sent."""
        with self.lock:
            allowed = min(count, max(0, self.after - 1 - self.sent))
            self.sent += allowed
            if allowed < count and not self.sprung:
                self.sprung = True
                self.then()
            return allowed


@dataclass(slots=True)
class Mood:
    """What goes wrong, after how many answers, and how many it spoils."""

    day: Day = Day.GOOD
    spared: int = 0
    times: int = 0
    versions: dict[str, str] = field(default_factory=dict[str, str])
    delay_s: float = 0.0
    looks_at_clocks: bool = False
    """Refuses what was signed more than 15 minutes from its own time, as S3 does."""
    trap: Trap | None = None
    gets: int = 0
    heads: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def spoils(self) -> Day:
        """The day of the next answer."""
        with self.lock:
            self.gets += 1
            if self.gets <= self.spared or self.times <= 0:
                return Day.GOOD
            self.times -= 1
            return self.day


class ObjectStore(ThreadingHTTPServer):
    """Serves a folder under /<bucket>/."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path) -> None:
        self.folder, self.mood = folder, Mood()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up here as part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    @property
    def _store(self) -> ObjectStore:
        assert isinstance(self.server, ObjectStore)
        return self.server

    def do_HEAD(self) -> None:
        path = self._path()
        with self._store.mood.lock:
            self._store.mood.heads += 1
        if self._is_clock_off():
            self._end(403)
            return
        if path is None:
            self._end(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.send_header("ETag", self._version(path))
        self.end_headers()

    def do_GET(self) -> None:
        path, day = self._path(), self._store.mood.spoils()
        time.sleep(self._store.mood.delay_s)
        if self._is_clock_off():
            self._end(403)
        elif path is None:
            self._end(404)
        elif day is Day.THROTTLES:
            self._end(503)
        elif day is Day.REFUSES:
            self._end(403)
        elif self.headers.get("If-Match", self._version(path)) != self._version(path):
            self._end(412)
        else:
            self._send(path, day)

    def _send(self, path: Path, day: Day) -> None:
        # the trap of the moment of asking: what an earlier client left does not count against the next one
        trap = self._store.mood.trap
        body = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status, told = 200, ""
        if wanted and day is not Day.IGNORES_RANGES:
            told = f"bytes {wanted[1]}-{min(int(wanted[2]), len(body) - 1)}/{len(body)}"
            if int(wanted[1]) >= len(body):
                self._end(416, f"bytes */{len(body)}")
                return
            body, status = body[int(wanted[1]) : int(wanted[2]) + 1], 206
        self.send_response(status)
        if told:
            self.send_header("Content-Range", told)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", self._version(path))
        self.end_headers()
        if day is Day.FLIPS_BITS:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if day in (Day.RESETS, Day.ENDS_EARLY):
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        if trap is None:
            self.wfile.write(body)
            return
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            allowed = trap.allows(len(piece))
            self.wfile.write(piece[:allowed])
            if allowed < len(piece):
                self.close_connection = True
                return

    def _is_clock_off(self) -> bool:
        if not self._store.mood.looks_at_clocks:
            return False
        signed = datetime.strptime(self.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return abs(datetime.now(UTC) - signed) > timedelta(minutes=15)

    def _path(self) -> Path | None:
        _, _, key = self.path.lstrip("/").partition("/")
        path = self._store.folder / key
        return path if path.is_file() else None

    def _version(self, path: Path) -> str:
        key = path.relative_to(self._store.folder).as_posix()
        return self._store.mood.versions.get(key, f'"{hashlib.sha256(key.encode()).hexdigest()[:16]}"')

    def _end(self, status: int, told: str = "") -> None:
        self.send_response(status)
        if told:
            self.send_header("Content-Range", told)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving(folder: Path) -> Iterator[ObjectStore]:
    """The store in a thread."""
    store = ObjectStore(folder)
    threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield store
    finally:
        store.shutdown()
        store.server_close()
