"""The command before any of its groups is loaded."""

import json
import os
import stat
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from app.errors import AppError
from cli import commands
from cli.files import write_text
from gpufleet.toolchain.folders import ROOT


def test_interrupt_during_loading_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; from cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 130
    assert (
        done.stderr == "gpufleet: interrupted; completed steps are recorded, and the next run continues from there\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "scan"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stderr == "gpufleet: interrupted; nothing was changed\n", "a scan completes no steps in an account"


def test_the_version_is_printed_without_a_command() -> None:
    done = CliRunner().invoke(commands.lazy(), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"gpufleet {version('gpu-fleet')}\n")


def test_interrupt_during_a_command_is_one_line_and_json() -> None:
    script = """
import sys
import typer
from cli import commands, main
def lazy():
    app = typer.Typer()
    @app.command()
    def command(json: bool = False):
        raise KeyboardInterrupt
    return app
commands.lazy = lazy
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, json.loads(done.stdout)) == (130, {"error": "interrupted"})
    assert (
        done.stderr == "gpufleet: interrupted; completed steps are recorded, and the next run continues from there\n"
    )


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("OSError(28, 'No space left on device')", "gpufleet: [Errno 28] No space left on device\n"),
        (
            "OperationalError('insert', {}, Exception('database or disk is full'))",
            "gpufleet: the ledger: database or disk is full: free space on its disk, then retry; the whole"
            " change was rolled back\n",
        ),
    ],
    ids=["disk", "ledger"],
)
def test_unhandled_known_error_is_one_line(raised: str, message: str) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from sqlalchemy.exc import OperationalError
from cli import commands, main
def lazy():
    def command():
        print("half a line", end="")
        raise {raised}
    return command
commands.lazy = lazy
main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (1, message)


def test_a_full_disk_under_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "settings", "schema"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=180, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "gpufleet: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/x", "Not a directory"),
        ("a" * 300, "File name too long"),
        ("", "is a folder; name a file in it"),
        ("/", "/ is a folder; name a file in it"),
        ("no/x", "No such file"),
    ],
)
def test_unwritable_output_path_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AppError, match=why):
        write_text("text", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path(), Path("..")):
        with pytest.raises(AppError, match="is a folder; name a file in it"):
            write_text("text", path)
    assert not [*tmp_path.iterdir()]


def test_a_replaced_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch(0o600)
    link.symlink_to(file)
    write_text("text", link)
    assert link.is_symlink() and file.read_text() == "text"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text("text", pipe)
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        pytest.param(["watch", "idle", "--json"], 1, "gone.json: No such file or directory", id="an error"),
        pytest.param(["report", "cost", "--format", "json"], 1, "gone.json: No such file", id="with --format"),
        pytest.param(["status", "--json", "--cost"], 2, "No such option: --cost (Possible", id="a wrong option"),
        pytest.param(
            ["watch", "idle", "odd", "--json"], 2, "unexpected extra argument(s) (odd)", id="an extra argument"
        ),
        pytest.param(["pause", "--json"], 2, "Missing argument 'scope'; `", id="a missing argument"),
        pytest.param(["pause", "all", "--json"], 2, "Missing option '--reason'", id="a missing option"),
        pytest.param(["target", "chat", "two", "--json"], 2, "Invalid value for '", id="a wrong value"),
        pytest.param(["watch", "nope", "--json"], 2, "No such command 'nope'", id="a wrong command"),
        pytest.param(["watch", "idle"], 1, None, id="for people"),
    ],
)
def test_errors_are_json_on_request(tmp_path: Path, arguments: list[str], code: int, answer: str | None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments, "--fleet", f"{tmp_path}/gone.json"],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == code and done.stderr
    if answer is None:
        assert not done.stdout
    else:
        assert answer in json.loads(done.stdout)["error"]


def test_error_after_the_answer_adds_nothing_to_stdout() -> None:
    script = """
import sys
from cli import commands, main, output
def lazy():
    def command():
        output.print_json([])
        raise AppError("nothing is known")
    return command
commands.lazy = lazy
sys.argv = ["gpufleet", "watch", "--json"]
main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "[]\n")


def test_closed_pipe_is_not_a_failure() -> None:
    script = """
import sys
from cli import commands, main, output
def lazy():
    def command():
        for _ in range(100_000):
            output.STDOUT.print("a line")
    return command
commands.lazy = lazy
main.main()
"""
    done = subprocess.run(
        ["sh", "-c", f"{{ {sys.executable} -c '{script}'; echo $? >&2; }} | head -1"],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("a line\n", "0\n")


@pytest.mark.parametrize(
    ("arguments", "closed", "left"),
    [
        pytest.param("settings schema", ">&-", (0, ""), id="JSON"),
        pytest.param("watch --help", ">&-", (0, ""), id="help"),
        pytest.param("watch idle --json --fleet /gone.json", ">&-", (1, "/gone.json: No such file"), id="an error"),
        pytest.param("watch idle --json --fleet /gone.json", ">&- 2>&-", (1, ""), id="stderr, too"),
    ],
)
def test_closed_stdout_is_not_a_failure(arguments: str, closed: str, left: tuple[int, str]) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m cli.main {arguments} {closed}"],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    code, error = left
    assert (done.returncode, done.stdout, bool(done.stderr)) == (code, "", bool(error))
    assert error in done.stderr and "Traceback" not in done.stderr


def test_list_of_commands_is_what_the_modules_register() -> None:
    assert list(commands.ENTRIES) == [entry.name for entries in commands.SECTIONS.values() for entry in entries]
    registered = get_command(commands.build()).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert set(registered) == set(commands.ENTRIES)
    for entry in commands.ENTRIES.values():
        assert entry.name in get_command(commands.build(entry.module)).commands  # pyright: ignore[reportAttributeAccessIssue]


def test_help_imports_no_command_and_fits_a_terminal() -> None:
    """The whole tree takes seconds to import: help, completion and a wrong command must not wait for it."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from cli import main
try:
    main.main()
finally:
    heavy = ("sqlalchemy", "boto3", "pulumi", "watchdogs")
    print(sorted(name for name in sys.modules if name.split(".")[0] in heavy))
"""
    for arguments in (["--help"], ["stauts"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT, env=os.environ | {"COLUMNS": "80"}, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == "[]"
        assert all(len(line) <= 80 for line in done.stdout.splitlines())
        assert "..." not in done.stdout.partition("Set up:")[2]
    assert "No such command 'stauts'. Did you mean 'status'?" in done.stderr


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param("gpufleet re", {"report", "replay", "resume"}, id="a command"),
        pytest.param("gpufleet report co", {"cost"}, id="a command of a group"),
    ],
)
def test_names_of_commands_complete(line: str, found: set[str]) -> None:
    completion = {
        "_GPUFLEET_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    script = "import sys; sys.argv = ['gpufleet']; from cli import main; main.main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env=os.environ | completion, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert set(done.stdout.split()) == found
