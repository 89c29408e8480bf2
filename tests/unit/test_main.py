"""The command before any of its groups is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.files import write_text
from cli.output import UserError

ROOT = Path(__file__).parents[2]


def test_an_interrupt_while_it_loads_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; from cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 130
    assert done.stderr == "gpufleet: interrupted; what was done is recorded, the next run goes on from it\n"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError(28, 'No space left on device')", "gpufleet: [Errno 28] No space left on device\n"),
        (
            "OperationalError('insert', {}, Exception('database or disk is full'))",
            "gpufleet: the ledger: database or disk is full: make room on its disk, then run this again: what was"
            " begun is taken back whole\n",
        ),
    ],
    ids=["disk", "ledger"],
)
def test_what_no_command_names_is_one_line(raised: str, said: str) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from sqlalchemy.exc import OperationalError
from cli import main
def build(group):
    def command():
        print("half a line", end="")
        raise {raised}
    return command
main.build = build
main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, said)


def test_a_full_disk_under_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "settings", "schema"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "gpufleet: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/x", "Not a directory"),
        ("a" * 300, "File name too long"),
        ("", "Is a directory"),
        ("no/x", "No such file"),
    ],
)
def test_a_place_that_takes_no_file_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=why):
        write_text("text", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text("text", pipe)
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
