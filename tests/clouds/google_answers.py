"""Recorded answers of Google, and a server that gives them to the real clients."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.networks import served

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "gcp"
Query = Mapping[str, str]
Answer = tuple[int, Any]


def recorded(name: str) -> Any:
    """What a file holds, without the headers that were recorded with it."""
    found = json.loads((RECORDED / name).read_text())
    return found.get("body", found)


class Compute:
    """Answers what a test says, by the path after the project, and writes down what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, Query]] = []
        self.answer: Callable[[str, Query], Answer] = lambda path, query: (200, {})


@contextmanager
def compute() -> Iterator[Compute]:
    """A server on loopback, as long as the block."""
    said = Compute()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            path = url.path.split("/", 5)[-1]
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            said.asked.append((path, query))
            status, body = said.answer(path, query)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        said.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield said
