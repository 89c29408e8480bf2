"""A real Prometheus (the Debian package) for a test."""

import subprocess
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.networks import end_process, free_port

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
