"""The commands on a page work: gpufleet, make and Pulumi know them with their options, and the safe ones run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from cli.commands import build
from gpufleet.ledger.schema import open_ledger
from gpufleet.toolchain.folders import ROOT, find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi
from tests.fixtures.scan.aws_accounts import AwsInstance, AwsRegion, aws_cloud, hours
from tests.fixtures.sized_models import model_folder
from tests.fixtures.small_fleet import document, fill

PAGES: Final = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(
        str(page.relative_to(ROOT))
        for folder in ("contributing", "docs")
        for page in (ROOT / folder).rglob("*.md")
        if page.parent.name != "reference"  # generated from the command line itself
    ),
)
PROGRAMS: Final = ("gpufleet", "make", "pulumi")
CRON: Final = re.compile(r"^(?:[-*/0-9,]+ +){5}")


@dataclass(frozen=True, slots=True)
class Typed:
    """A command in a code block. `arguments`: without pipes, redirections and comments."""

    page: str
    line: int
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.arguments)}"


def lines_of(page: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, language and text of each line in a code block."""
    language: str | None = None
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = re.match(r" *```(\w*)", line)
        if fence:
            language = None if language is not None else fence[1]
        elif language is not None:
            yield number, language, line.strip()


def commands_of(page: str) -> Iterator[Typed]:
    """Yield the commands of `gpufleet`, `make` and `pulumi` that a reader types."""
    for number, language, line in lines_of(page):
        if language == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        elif language not in ("", "sh", "bash"):
            continue
        for arguments in (
            *_split(CRON.sub("", line)),
            *(_arguments(inner) for inner in re.findall(r"\$\(([^()]+)\)", line)),
        ):
            while arguments and re.match(r"[A-Za-z_]\w*=", arguments[0]):
                arguments = arguments[1:]
            if arguments and arguments[0] in PROGRAMS and not set("─▶") & set(line):
                yield Typed(page, number, arguments)


def _split(line: str) -> Iterator[tuple[str, ...]]:
    found: list[str] = []
    for word in [*_arguments(line), ";"]:
        if re.fullmatch(r"[;&|]+", word):
            yield tuple(found)
            found = []
        else:
            found.append(word)


def _arguments(text: str) -> tuple[str, ...]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        return tuple(lexer)
    except ValueError:  # a quotation that ends on another line: test_shell_code_of_a_page_parses reads whole blocks
        return ()


TYPED: Final = tuple(typed for page in PAGES for typed in commands_of(page))


def by(program: str) -> Any:
    own = [typed for typed in TYPED if typed.arguments[0] == program]
    return pytest.mark.parametrize("typed", own, ids=map(str, own))


def test_pages_have_commands() -> None:
    counted = {program: sum(typed.arguments[0] == program for typed in TYPED) for program in PROGRAMS}
    assert counted["gpufleet"] > 90 and counted["make"] > 20 and counted["pulumi"] > 5, counted


@cache
def tree() -> Any:
    return get_command(build())


def find_command(arguments: Sequence[str], where: object) -> tuple[Any, list[str]]:
    """Return the command that the arguments name, and its arguments."""
    command, arguments = tree(), list(arguments[1:])
    # typer uses its own copy of click, so groups are identified by their attributes
    while arguments and hasattr(command, "commands") and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        assert name in command.commands, f"{where}: there is no command {name!r}"
        command = command.commands[name]
    return command, arguments


def problem_of(arguments: Sequence[str], where: object) -> str | None:
    """Return what the command line says about a command without running it; None: it accepts it.

    Files need not exist. A value in capital letters must have the form of its option.
    """
    command, arguments = find_command(arguments, where)
    if "--help" in arguments:
        arguments.remove("--help")
        _, left, _ = command.make_parser(command.context_class(command)).parse_args(arguments)
        return f"there is no place for {left}" if left else None
    if hasattr(command, "commands"):
        return "it is a group of commands"
    for parameter in command.params:
        kind: Any = getattr(parameter, "type", None)
        if hasattr(kind, "exists"):
            kind.exists = False
    try:
        command.make_context(command.name, arguments)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    return None


@cache
def exported(page: str) -> Mapping[str, str]:
    """Return the variables that the code blocks of a page set for the shell."""
    found = (re.match(r"export (\w+)=(\S+)", line) for _, _, line in lines_of(page))
    return {match[1]: match[2] for match in found if match}


@by("gpufleet")
def test_the_command_line_accepts_a_command_of_a_page(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in exported(typed.page).items():
        monkeypatch.setenv(name, value)
    problem = problem_of(typed.arguments, typed)
    assert problem is None, f"{typed}: {problem}"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("gpufleet report costs", "there is no command"),
        ("gpufleet report cost --sinc 24h", "No such option"),
        ("gpufleet report cost --since", "requires an argument"),
        ("gpufleet report cost --by colour", "not one of"),
        ("gpufleet model show", "Missing option"),
        ("gpufleet drain", "Missing argument"),
        ("gpufleet status extra", "unexpected extra argument"),
        ("gpufleet report", "group"),
    ],
)
def test_a_wrong_command_would_be_found(line: str, problem: str) -> None:
    try:
        found = problem_of(line.split(), "page:1")
    except AssertionError as error:
        found = str(error)
    assert problem in (found or "")


INLINE: Final = [
    (page, line)
    for page in PAGES
    for code in sorted(set(re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())))
    if code.startswith("gpufleet ")
    for line in [re.split(r"[|;&#)]", code)[0].strip()]
]


@pytest.mark.parametrize(("page", "line"), INLINE, ids=[f"{page}: {line}" for page, line in INLINE])
def test_command_inside_a_sentence_exists(page: str, line: str) -> None:
    """It may omit what it requires; brackets enclose optional arguments."""
    command, arguments = find_command(shlex.split(line), f"{page}: {line}")
    if hasattr(command, "commands"):
        assert set(arguments) <= {"--help"}, f"{page} names `{line}`, a group"
        return
    given = [bare for word in arguments if (bare := word.strip("[]")) and bare != "--help"]
    _, left, _ = command.make_parser(command.context_class(command)).parse_args(given)
    assert left == [], f"{page} names `{line}`, which has no place for {left}"


MAKEFILE: Final = (ROOT / "Makefile").read_text()
TARGETS: Final = {name for line in re.findall(r"^([a-z][a-z -]*):", MAKEFILE, re.MULTILINE) for name in line.split()}
VARIABLES: Final = {*re.findall(r"^(\w+) \?=", MAKEFILE, re.MULTILINE), *re.findall(r"'\$\((\w+)\)'", MAKEFILE)}


@by("make")
def test_make_knows_target_and_variables_of_a_page(typed: Typed) -> None:
    names = {word.partition("=")[0] for word in typed.arguments[1:] if "=" in word}
    assert {word for word in typed.arguments[1:] if "=" not in word} <= TARGETS, str(typed)
    assert names <= VARIABLES, str(typed)


@pytest.mark.parametrize("page", PAGES)
def test_make_target_inside_a_sentence_exists(page: str) -> None:
    assert set(re.findall(r"`make ([a-z][a-z-]*)", (ROOT / page).read_text())) <= TARGETS


@cache
def pulumi_help(arguments: tuple[str, ...]) -> str:
    """Return the help of a subcommand. Pulumi has no way to parse a command without running it."""
    pulumi = find_pulumi(find_folders(os.environ))
    if pulumi is None:
        pytest.skip("the Pulumi CLI is not installed (make setup)")
    shown = subprocess.run([pulumi, *arguments, "--help"], capture_output=True, text=True, timeout=120, check=True)
    return shown.stdout


@by("pulumi")
def test_pulumi_knows_subcommand_and_options_of_a_page(typed: Typed) -> None:
    names: list[str] = []
    for word in typed.arguments[1:]:
        if word.startswith("-") or f"\n  {word} " not in pulumi_help(tuple(names)):
            break
        names.append(word)
    assert names, f"{typed}: pulumi has no such command"
    unknown = {word.partition("=")[0] for word in typed.arguments if word.startswith("--")}
    shown = set(re.findall(r"--[a-z][a-z-]*", pulumi_help(tuple(names))))
    assert unknown <= shown, str(typed)


RUNS: Final = (
    *("settings check", "settings schema", "policies list", "policies explain", "accelerators", "engines", "init"),
    *("choose", "size", "scan", "report cost", "report savings", "report waste", "ledger verify", "ledger export"),
)
"""First arguments of commands that run here: they change nothing outside of the files that they name, and
need at most AWS's API on loopback and a ledger. The demo runs commands that change a fleet (tests/e2e)."""
ELSEWHERE: Final = ("--profile", "--role", "--project", "--prometheus", "--slack", "--post")
"""Options that need an account, a server or a file of the reader."""


def runs(typed: Typed) -> bool:
    """Whether a command runs here: by its first arguments, if it is complete and has no placeholder."""
    line = " ".join(typed.arguments[1:])
    if "--help" in typed.arguments:
        return True
    placeholder = any(re.fullmatch(r"[A-Z]{2,}", word) for word in typed.arguments)
    return line.startswith(RUNS) and not placeholder and not set(typed.arguments) & set(ELSEWHERE)


RUNNING: Final = {typed.arguments: typed for typed in TYPED if typed.arguments[0] == "gpufleet" and runs(typed)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with what the commands name, and variables that lead them to an AWS on loopback and a ledger."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "stacks").symlink_to(ROOT / "stacks")
    model_folder(folder / "chat", "meta-llama/Llama-3.1-8B-Instruct")
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    fill(engine)
    engine.dispose()
    now = datetime.now(UTC)
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_", "GPUFLEET_"))
    }
    with aws_cloud() as cloud:
        old = now - timedelta(days=30)
        cloud.regions["us-east-1"] = AwsRegion(
            instances=[
                AwsInstance(id="i-idle", launched=old, gpus=[hours(0)], tags={"Owner": "ml"}),
                AwsInstance(id="i-busy", launched=old, gpus=[hours(40)], tags={"Owner": "ml"}),
            ]
        )
        variables = {
            **plain,
            **cloud.environment("AKIDFIRST"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "GPUFLEET_FLEET": str(document(folder)),
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
        }
        # docs/scan.md saves the output of `gpufleet scan --json`
        (folder / "scan.json").write_text(_run(("gpufleet", "scan", "--json"), folder, variables).stdout)
        yield folder, variables


def _run(arguments: Sequence[str], folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    places = {"s3://BUCKET/models/chat": str(folder / "chat"), "/tmp/draft.yaml": str(folder / "draft.yaml")}  # noqa: S108
    arguments = [places.get(word, word) for word in arguments[1:]]
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("typed", RUNNING.values(), ids=map(str, RUNNING.values()))
def test_command_of_a_page_runs(typed: Typed, prepared: tuple[Path, dict[str, str]]) -> None:
    """Exit code 3 is "done, with findings"."""
    done = _run(typed.arguments, *prepared)
    assert done.returncode in (0, 3), f"{typed}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, str(typed)


SHELL = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if SHELL.search((ROOT / page).read_text())])
def test_shell_code_of_a_page_parses(page: str) -> None:
    for block in SHELL.findall((ROOT / page).read_text()):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, timeout=180, check=False)
        assert (done.returncode, done.stderr) == (0, ""), block


def test_crontab_of_the_page_matches_the_shipped_one() -> None:
    lines = (ROOT / "deploy" / "crontab").read_text().splitlines()
    shipped = [line for line in lines if line[:1] == "*" or line[:1].isdigit()]
    [shown] = re.findall(
        r"^```\n(\*.*?)\n```", (ROOT / "docs" / "run-modes.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown.splitlines() == shipped
