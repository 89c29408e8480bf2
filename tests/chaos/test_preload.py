"""The faults of name resolution and clock take effect in a process."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.clock import make_clock
from tests.chaos.names import make_names, url
from tests.chaos.preload import environment

LOOK = """
import socket, sys, time
try:
    found = socket.getaddrinfo(sys.argv[1], 80)[0][4][0]
except socket.gaierror as error:
    found = error.strerror
print(round(time.time() - float(sys.argv[2])), found)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_names_and_clock_change_only_for_one_process(tmp_path: Path) -> None:
    names, clock = make_names(tmp_path), make_clock(tmp_path)
    host = url(names, "prometheus", "127.100.0.10", 9090).removeprefix("http://").removesuffix(":9090")
    assert not host.startswith("127.")

    def seen(name: str) -> tuple[int, str]:
        """The offset of the clock, up to the run time of a process, and the result of the name lookup."""
        command = [sys.executable, "-c", LOOK, name, str(time.time())]
        loaded = os.environ | environment([names, clock])
        done = subprocess.run(command, env=loaded, capture_output=True, text=True, check=True, timeout=120)
        off, _, found = done.stdout.strip().partition(" ")
        return round(int(off) / 1000) * 1000, found

    assert seen(host) == (0, "127.100.0.10")
    clock.set(-100_000)
    names.set(1)
    assert seen(host) == (-100_000, "Temporary failure in name resolution")
    assert seen("127.100.0.3") == (-100_000, "127.100.0.3"), "an address is not resolved as a name"
    clock.set(0)
    names.set(0)
    assert seen(host) == (0, "127.100.0.10")
