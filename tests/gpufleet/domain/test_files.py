"""Atomic file writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.domain.files import write_atomically, write_private


def whole(path: Path, text: str) -> None:
    write_atomically(path, text.encode())


@pytest.mark.parametrize(
    ("write", "shown_to_others"),
    [pytest.param(whole, True, id="for all"), pytest.param(write_private, False, id="for its owner")],
)
@pytest.mark.parametrize(
    "before", [pytest.param(None, id="a new one"), pytest.param("old, and longer", id="an old one")]
)
def test_no_partial_file_is_left(
    tmp_path: Path, write: Callable[[Path, str], None], before: str | None, *, shown_to_others: bool
) -> None:
    path = tmp_path / "file.json"
    (tmp_path / ".file.json.part").write_text("what a killed one left")
    if before is not None:
        path.write_text(before)
    write(path, "new")
    assert path.read_text() == "new"
    assert bool(path.stat().st_mode & 0o044) is shown_to_others
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    (tmp_path / ".file.json.part").mkdir()
    with pytest.raises(OSError, match="file.json"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
