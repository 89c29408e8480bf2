"""A real Prometheus (the Debian package) for a test, and one that has nothing to say."""

import subprocess
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.networks import end_process, free_port, served

READY_LIMIT_S: Final = 90


@contextmanager
def running(
    folder: Path, address: str = "", *options: str, environment: Mapping[str, str] | None = None
) -> Generator[str]:
    """One that reads the folder's `prometheus.yml`, as long as the block. Gives its URL once it is ready.

    Its data and its log lie in the folder, too. Without an address (`host:port`) it gets a free port of 127.0.0.1.
    """
    listen = address or f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    log = folder / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={listen}", *options], stdout=said, stderr=said, env=environment
        )
    try:
        _wait_until_ready(process, f"http://{listen}/-/ready", log)
        yield f"http://{listen}"
    finally:
        end_process(process, 30)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with direct.open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"Prometheus is not ready: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def without_series() -> Generator[str]:
    """The address of one that knows no series: a stand-in of ours, at once there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.path.encode() + self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'
            if b"%5B" in asked and b"over_time" not in asked:
                body = body.replace(b"vector", b"matrix")
            if "targets" in self.path or "config" in self.path:
                body = b'{"status": "success", "data": {"activeTargets": [], "yaml": ""}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name is http.server's

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"
