"""A Hugging Face hub on loopback: one repository with one commit, as far as the real client asks for it."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "5f0b02c75b57c5855da9ae460ce51323ea669d8a"
REPOSITORY = "acme/chat"
_LFS = (".safetensors", ".bin")


class Hub(ThreadingHTTPServer):
    """Serves a folder as `acme/chat`."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        self.lies: dict[str, str] = {}
        """sha256 that the hub claims, by name, where it is not the bytes' own."""
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def sha256(self, name: str) -> str:
        return self.lies.get(name) or hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def info(self) -> dict[str, Any]:
        """What /api/models/acme/chat answers with blobs=true."""
        siblings: list[dict[str, Any]] = []
        for name in self.names:
            row: dict[str, Any] = {"rfilename": name, "blobId": "0" * 40, "size": 1}
            if name.endswith(_LFS):
                row["lfs"] = {"sha256": self.sha256(name), "size": 1, "pointerSize": 134}
            siblings.append(row)
        return {
            "_id": "1", "id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "private": False, "tags": [],
            "downloads": 0, "likes": 0, "cardData": {"license": "apache-2.0"}, "siblings": siblings,
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(path)
        name = path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
        if path.startswith(f"/api/models/{REPOSITORY}"):
            self._send(200, json.dumps(hub.info()).encode(), body, {"Content-Type": "application/json"})
        elif name != path and name in hub.names and (hub.folder / name).is_file():
            headers = {"ETag": f'"{hub.sha256(name)}"', "X-Repo-Commit": COMMIT}
            self._send(200, (hub.folder / name).read_bytes(), body, headers)
        else:
            self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, content: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """The hub in a thread."""
    hub = Hub(folder)
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
