"""The HAProxy process: checked, started, reloaded, stopped. It dies with the controller."""

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
"""For the C library: buffers are large, and to give each back to the system and fetch it again takes a call for every
second request and a tenth of all speed."""
_POOLED: Final = "-dMglobal"
"""Buffers that HAProxy does not need now stay in its own pools, up to what it needed of late; its cache for a thread
alone has room for 512 KiB, and the rest would go through the C library."""
CHECK_LIMIT_S: Final = 60.0
LOG_MODE: Final = 0o640


class HaproxyError(OSError):
    """HAProxy is missing, refuses its configuration, or did not start. Carries what it said."""


def find_program() -> str:
    """Where haproxy is. Raises HaproxyError with the remedy."""
    found = which("haproxy") or which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise HaproxyError("haproxy is not installed: `apt-get install haproxy` (2.6 or newer)")
    return found


def check_config(config: Path) -> None:
    """Let HAProxy judge a configuration. Raises HaproxyError with its words."""
    command = [find_program(), "-c", "-C", str(config.parent), *_files(config)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HaproxyError(f"HAProxy did not judge {config} within {CHECK_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise HaproxyError(f"HAProxy refuses {config}: {_said(done.stderr)}")


def _files(config: Path) -> list[str]:
    """The engines' key first, where there is one: the configuration names its variable."""
    key = ["-f", engine_key.FILE_NAME] if (config.parent / engine_key.FILE_NAME).exists() else []
    return [*key, "-f", config.name]


def _log(path: Path) -> IO[bytes]:
    """To write at its end. Names of keys and models are in it: no stranger reads it, whatever the umask."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE), "ab")
    os.fchmod(file.fileno(), LOG_MODE)
    return file


class Haproxy:
    """A master with its workers."""

    def __init__(self, paths: RouterPaths, sleep: Callable[[float], None] = time.sleep) -> None:
        self._paths = paths
        self._sleep = sleep
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        self.admin = AdminSocket(paths.state)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start with the configuration in place; returns when it answers. Raises HaproxyError.

        The parent-death signal ends it when the controller is killed, however that happens.
        """
        (self._paths.state / ADMIN_SOCKET).unlink(missing_ok=True)
        self._said_before = self._paths.log.stat().st_size if self._paths.log.exists() else 0
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
        """Replace the worker without a cut; returns when the new one answers. Raises HaproxyError.

        What the old worker knows of its servers (a drain, say) is written down first, for the new one to read.
        """
        if self._process is None:
            raise HaproxyError("HAProxy was not started, so it cannot reload")
        old = self.admin.process_id()
        self.save_server_state()
        self._process.send_signal(signal.SIGUSR2)
        self._wait(lambda: self.admin.process_id() != old, "reload")

    def save_server_state(self) -> None:
        """Write what HAProxy knows of its servers where its next worker reads it. Raises OSError."""
        new = self._paths.server_state.with_suffix(".new")
        new.write_text(self.admin.ask("show servers state") + "\n")
        new.replace(self._paths.server_state)

    def stop(self, grace_s: float) -> None:
        """Let requests end for `grace_s` seconds, then stop."""
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
                raise HaproxyError(f"HAProxy ended at its {what}: {self._last_words()}")
            try:
                if ready():
                    return
            except OSError:
                pass  # its socket is not there yet
            self._sleep(0.02)
        raise HaproxyError(f"HAProxy did not answer {START_LIMIT_S:.0f} s after its {what}: {self._last_words()}")

    def _last_words(self) -> str:
        with self._paths.log.open("rb") as log:
            log.seek(self._said_before)
            return _said(log.read(65_536).decode(errors="replace"))


def _said(text: str) -> str:
    bad = [line for line in text.splitlines() if "[ALERT]" in line]
    return "; ".join(line.partition(":")[2].strip() for line in bad[:5]) or text.strip()[-400:] or "it said nothing"
