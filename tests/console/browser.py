"""Headless Chromium, driven over its debugging pipe with the standard library alone."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT_S = 60.0


class Browser:
    """One tab. `problems` collects what the page's console and the security policy complained of."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self._loaded: set[str] = set()
        self.problems: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found
                return found["result"]
        raise TimeoutError(method)

    @contextmanager
    def loads(self) -> Iterator[None]:
        """Do something inside; returns when a page has loaded because of it."""
        self.ask("0")  # what the last page did is heard before that
        before = set(self._loaded)
        yield
        self._until(lambda: bool(self._loaded - before))

    def open(self, url: str) -> None:
        loader = self.call("Page.navigate", url=url)["loaderId"]
        self._until(lambda: loader in self._loaded)

    def _until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not true():
            if time.monotonic() > end:
                raise TimeoutError("no page was loaded")
            self._next()

    def look(self, width: int, scheme: str) -> None:
        """As a screen of that width in that colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def ask(self, expression: str) -> Any:
        """A value from the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
            text = {}

    def type(self, words: str) -> None:
        self.call("Input.insertText", text=words)

    def picture(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._back], [], [], LIMIT_S)[0]:
                raise TimeoutError(f"the browser said nothing for {LIMIT_S} s")
            chunk = os.read(self._back, 1 << 20)
            if not chunk:
                raise EOFError("the browser ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        method, parameters = found.get("method"), found.get("params", {})
        if method == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])
        elif method == "Page.lifecycleEvent" and parameters["name"] == "load":
            self._loaded.add(parameters["loaderId"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.problems.append(json.dumps(parameters)[:300])
        return found


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A fresh one with a profile of its own."""
    assert PROGRAM is not None
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    command = [
        PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-pipe", "--no-proxy-server", f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        ["bash", "-c", script, "browser", str(read_in), str(write_out), *command],
        pass_fds=(read_in, write_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(read_in)
    os.close(write_out)
    try:
        yield Browser(write_in, read_out)
    finally:
        os.close(write_in)
        process.terminate()
        process.wait(20)
        os.close(read_out)
