"""`python -m benchmarks.object_server FOLDER`: an S3 server for reads that uses `sendfile`, so that clients are the
bottleneck.

It prints its port. It supports GET with ranges, HEAD and ListObjectsV2, and does not verify requests.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET: Final = "bucket"


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """Run the server of a folder in its own process, and yield its URL."""
    command = [sys.executable, "-m", "benchmarks.object_server", str(folder)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """As real stores do. Otherwise the end of a small object waits until the client has acknowledged the headers."""
    root = Path()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if "list-type" in query or parts.path.rstrip("/") == f"/{BUCKET}":
            self._list(query.get("prefix", [""])[0])
        else:
            self._answer(body=True)

    def _path(self) -> Path:
        return self.root / unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def _answer(self, *, body: bool) -> None:
        path = self._path()
        if not path.is_file():
            self._send(404, 0)
            return
        size = path.stat().st_size
        start, end, status = 0, size - 1, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            start, end, status = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1), 206
        headers = {"ETag": f'"{hashlib.md5(str(path).encode(), usedforsecurity=False).hexdigest()}"'}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        headers["Last-Modified"] = "Sat, 21 Nov 2026 00:00:00 GMT"
        self._send(status, end - start + 1, headers)
        if body:
            with path.open("rb") as file:
                self.wfile.flush()
                while start <= end:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start + 1)

    def _list(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;0&quot;</ETag><Size>{path.stat().st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and (key := path.relative_to(self.root).as_posix()).startswith(prefix)
        )
        text = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{prefix}</Prefix><MaxKeys>100000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        ).encode()
        self._send(200, len(text), {"Content-Type": "application/xml"})
        self.wfile.write(text)

    def _send(self, status: int, length: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()


def main() -> None:
    """Serve until terminated."""
    _Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
