"""A release change is killed (SIGKILL) at each of its lines: the next run completes it."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hosts.control import ledger_file
from hosts.control import releases as code
from hosts.control.releases import ReleaseBusyError, ReleaseError, Releases
from tests.fixtures.control.releases import NOW, Host, make_host

LATER = NOW + timedelta(minutes=5)
FILES = (code.__file__, ledger_file.__file__)
MAX_LINES = 400
"""Limit for the lines of one change. If a run ends without a kill before, each of its lines was tested."""


def killed_at(line: int, change: Callable[[], object]) -> bool:
    """Run the change in a child process that is killed at the n-th line of `releases.py` or `ledger_file.py`.

    Return whether it was killed: False if it ended before.
    """
    child = os.fork()
    if child == 0:
        # The child must never continue with the test.
        try:
            _trace(line)
            change()
        except ReleaseError:
            pass
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _trace(line: int) -> None:
    left = line

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return look

    sys.settrace(look)


def upgraded(host: Host) -> None:
    host.upgrade("two")


def rolled_back(host: Host) -> None:
    host.releases.rollback(LATER)


def replaced(host: Host) -> Host:
    """Return a new machine with the same volume; its boot data name the first release."""
    places = host.releases.places
    shutil.rmtree(places.releases)
    places.current.unlink()
    host.machine.stop()
    host.releases.stage(host.digests["one"])
    host.releases.link(host.digests["one"])
    return host


def booted(host: Host) -> None:
    """Do the same as `host start`."""
    releases = host.releases
    try:
        if releases.recover(LATER):
            return
    except ReleaseError as error:
        host.announced.append(str(error))  # systemd restarts the unit, which finds nothing to recover
    chosen = releases.chosen()
    assert chosen is not None
    releases.stage(chosen.current)
    releases.link(chosen.current)
    host.machine.start()


WELL, BAD = "the new release is healthy", "the new release is not healthy"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "tables", "new"),
    [
        pytest.param(upgraded, "same tables", WELL, marks=pytest.mark.long),
        (upgraded, "changed tables", WELL),
        pytest.param(upgraded, "changed tables", BAD, marks=pytest.mark.long),
        pytest.param(rolled_back, "same tables", WELL, marks=pytest.mark.long),
        (rolled_back, "changed tables", BAD),
    ],
)
def test_a_release_change_killed_at_any_line_is_completed_or_rolled_back(
    tmp_path: Path, change: Callable[[Host], None], tables: str, new: str
) -> None:
    ends, pristine = set[str | None](), _prepared(tmp_path, change, tables, new)
    for line in range(MAX_LINES):
        host = _copied(pristine, tmp_path / "now")
        before = host.machine.facts()
        if not killed_at(line, lambda host=host: change(host)):
            break
        # At every third line, the machine is lost too.
        booted(replaced(host) if line % 3 == 0 else host)
        _is_whole(host, before, f"killed at line {line}")
        ends.add(host.machine.running)
        assert not host.releases.recover(LATER), "a second boot finds nothing to do"
    else:
        pytest.fail(f"more than {MAX_LINES} lines: not killed at all of them")
    target = "two" if change is upgraded else "one"
    assert ends == ({"one", "two"} if new == WELL else {"two" if target == "one" else "one"})


def _prepared(folder: Path, change: Callable[[Host], None], tables: str, new: str) -> Host:
    host = make_host(folder / "first")
    if change is rolled_back:
        host.upgrade("two")
    target = "two" if change is upgraded else "one"
    if tables == "changed tables":
        # A rollback over changed tables is refused, so both releases support them in that case.
        host.machine.migrates |= {"two"} if change is upgraded else {"one", "two"}
    if new == BAD:
        host.machine.breaks.add(target)
    return host


def _copied(host: Host, folder: Path) -> Host:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(host.releases.places.root, folder, symlinks=True)
    copy = make_host(folder, fresh=False)
    copy.digests, copy.machine.bundles = host.digests, host.machine.bundles
    copy.machine.migrates, copy.machine.breaks = set(host.machine.migrates), set(host.machine.breaks)
    places = copy.releases.places
    running = copy.releases.running()
    places.current.unlink()
    copy.releases.link(running)
    return copy


def _is_whole(host: Host, before: list[str], context: str) -> None:
    """Check that the running release is linked and chosen, supports the schema, and that no fact is lost."""
    running, chosen = host.machine.running, host.releases.chosen()
    assert running is not None and chosen is not None, context
    assert running not in host.machine.breaks, context
    assert (host.linked, chosen.current) == (running, host.digests[running]), context
    assert host.machine.schema() == "first" or running in host.machine.migrates, context
    assert host.machine.facts()[: len(before)] == before, context
    assert host.releases.pending_change() is None, context


def test_only_one_release_change_at_a_time(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    other = Releases(places=host.releases.places, machine=host.machine, announce=host.announced.append)
    seen: list[str] = []

    def health_problem() -> None:
        with pytest.raises(ReleaseBusyError, match="wait until it ends"):
            other.recover(NOW)
        seen.append("looked")

    host.machine.looks = health_problem
    host.upgrade("two")
    assert seen == ["looked"]


def test_an_unreadable_note_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    host = make_host(tmp_path)
    host.releases.places.change.write_text("{")
    with pytest.raises(ReleaseError, match=r"change\.json: cannot be used.*ledger\.before-upgrade\.db"):
        host.releases.recover(NOW)
    assert host.machine.running == "one"
