"""The HAProxy process: checked, started, reloaded, stopped. It ends with the controller."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import IO, Final

from serving.router import engine_key
from serving.router.runtime import AdminSocket
from serving.router.settings import ADMIN_SOCKET, RouterPaths

START_LIMIT_S: Final = 15.0
_KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(4 * 1024 * 1024),
}
"""Settings of the C library's allocator. By default it returns large buffers to the system and requests them again,
which costs a system call for every other request, and a tenth of the throughput."""
_POOLED: Final = "-dMglobal"
"""Keeps unused buffers in HAProxy's own pools, up to the recent maximum. HAProxy's cache per thread holds only
512 KiB; further buffers would go through the C library."""
CHECK_LIMIT_S: Final = 60.0
LOG_MODE: Final = 0o640


class HaproxyError(OSError):
    """HAProxy is missing, refuses its configuration, or did not start. The message includes its output."""


def find_program() -> str:
    """Return the path of haproxy. Raises HaproxyError with the fix."""
    found = which("haproxy") or which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise HaproxyError("haproxy is not installed: `apt-get install haproxy` (2.6 or newer)")
    return found


def check_config(config: Path) -> None:
    """Check a configuration with HAProxy. Raises HaproxyError with its output."""
    command = [find_program(), "-c", "-C", str(config.parent), *_files(config)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HaproxyError(f"HAProxy did not finish its check of {config} within {CHECK_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise HaproxyError(f"HAProxy rejects {config}: {_errors_in(done.stderr)}")


def _files(config: Path) -> list[str]:
    """Return file arguments. The engine key's file comes first, because the configuration uses its variable."""
    key = ["-f", engine_key.FILE_NAME] if (config.parent / engine_key.FILE_NAME).exists() else []
    return [*key, "-f", config.name]


def _log(path: Path) -> IO[bytes]:
    """Open a log for appending. It has names of keys and models, so its mode does not depend on the umask."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE), "ab")
    os.fchmod(file.fileno(), LOG_MODE)
    return file


class Haproxy:
    """A master process with its workers."""

    def __init__(self, paths: RouterPaths, sleep: Callable[[float], None] = time.sleep) -> None:
        self._paths = paths
        self._sleep = sleep
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.admin = AdminSocket(paths.state)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start HAProxy with the current configuration; return when it responds. Raises HaproxyError.

        The parent-death signal ends HAProxy when the controller is killed in any way.
        """
        (self._paths.state / ADMIN_SOCKET).unlink(missing_ok=True)
        self._log_start = self._paths.log.stat().st_size if self._paths.log.exists() else 0
        command = ["setpriv", "--pdeathsig", "TERM", find_program(), _POOLED, "-W", "-C", str(self._paths.state)]
        with _log(self._paths.access_log) as access, _log(self._paths.log) as log:
            self._process = subprocess.Popen(
                [*command, *_files(self._paths.config)],
                stdin=subprocess.DEVNULL,
                stdout=access,
                stderr=log,
                env=_KEEP_MEMORY | os.environ,
                start_new_session=True,
            )
        self._wait(lambda: self.admin.process_id() > 0, "start")

    def reload(self) -> None:
        """Replace the worker without cutting requests; return when the new one responds. Raises HaproxyError.

        First saves the state of the old worker's servers (a drain, for example) for the new worker.
        """
        if self._process is None:
            raise HaproxyError("HAProxy was not started, so it cannot reload")
        old = self.admin.process_id()
        self.save_server_state()
        self._process.send_signal(signal.SIGUSR2)
        self._wait(lambda: self.admin.process_id() != old, "reload")

    def save_server_state(self) -> None:
        """Write the state of HAProxy's servers to the file that the next worker reads. Raises OSError."""
        new = self._paths.server_state.with_suffix(".new")
        new.write_text(self.admin.ask("show servers state") + "\n")
        new.replace(self._paths.server_state)

    def stop(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds for requests, then stop."""
        if self._process is None:
            return
        for stop_signal, limit in ((signal.SIGUSR1, grace_s), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if self._process.poll() is not None:
                break
            self._process.send_signal(stop_signal)
            try:
                self._process.wait(timeout=max(limit, 0.1))
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if not self.running:
                raise HaproxyError(f"HAProxy ended during its {what}: {self._last_errors()}")
            try:
                if ready():
                    return
            except OSError:
                pass  # its socket does not exist yet
            self._sleep(0.02)
        raise HaproxyError(
            f"HAProxy did not respond within {START_LIMIT_S:.0f} s of its {what}: {self._last_errors()}"
        )

    def _last_errors(self) -> str:
        with self._paths.log.open("rb") as log:
            log.seek(self._log_start)
            return _errors_in(log.read(65_536).decode(errors="replace"))


def _errors_in(text: str) -> str:
    bad = [line for line in text.splitlines() if "[ALERT]" in line]
    return "; ".join(line.partition(":")[2].strip() for line in bad[:5]) or text.strip()[-400:] or "it logged nothing"
