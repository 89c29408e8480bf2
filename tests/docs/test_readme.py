"""The commands on a page work: they exist with their options, make targets exist, and shell code is valid."""

import re
import shlex
import subprocess
from typing import Any

import pytest
from typer.main import get_command

from cli.commands import build
from gpufleet.toolchain.folders import ROOT

PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(
        str(page.relative_to(ROOT)) for folder in ("contributing", "docs") for page in (ROOT / folder).glob("*.md")
    ),
)
LINE = re.compile(r"gpufleet( +[^`|;&#)\n]*)?")


def lines_of(page: str) -> list[str]:
    """Lines that begin with `gpufleet` in inline code and fenced blocks, without pipes and comments."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines() if re.match(r"\s*(\$ |gpufleet)", line)]
    inline = [code for code in re.findall(r"`([^`\n]+)`", text) if code.startswith("gpufleet ")]
    return sorted({found[0].strip() for line in typed + inline for found in LINE.finditer(line)})


COMMAND_LINES = [(page, line) for page in PAGES for line in lines_of(page)]


def test_pages_name_commands() -> None:
    assert len([line for page, line in COMMAND_LINES if page == "README.md"]) > 15


@pytest.fixture(scope="module")
def tree() -> Any:
    return get_command(build())


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES, ids=[f"{page}: {line}" for page, line in COMMAND_LINES])
def test_command_of_a_page_exists(tree: Any, page: str, line: str) -> None:
    command, arguments = tree, shlex.split(line)[1:]
    # typer uses its own copy of click, so groups are identified by their attributes
    while arguments and hasattr(command, "commands") and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        assert name in command.commands, f"{page} names `{line}`; there is no {name!r}"
        command = command.commands[name]
    if hasattr(command, "commands"):
        assert set(arguments) <= {"--help"}, f"{page} names `{line}`, a group"
        return
    # brackets enclose optional arguments; a command inside a sentence may omit required ones
    given = [bare for word in arguments if (bare := word.strip("[]")) and bare != "--help"]
    _, left, _ = command.make_parser(command.context_class(command)).parse_args(given)
    assert left == [], f"{page} names `{line}`, which has no place for {left}"


SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if SHELL.search((ROOT / page).read_text())])
def test_shell_code_of_a_page_parses(page: str) -> None:
    for block in SHELL.findall((ROOT / page).read_text()):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, timeout=180, check=False)
        assert (done.returncode, done.stderr) == (0, ""), block


@pytest.mark.parametrize("page", PAGES)
def test_make_target_of_a_page_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    typed = [*SHELL.findall(text), *re.findall(r"`(make [^`\n]+)`", text)]
    named = {name for block in typed for name in re.findall(r"^make ([a-z][a-z-]*)", block, re.MULTILINE)}
    targets = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= {name for line in targets for name in line.split()}


def test_crontab_of_the_page_matches_the_shipped_one() -> None:
    lines = (ROOT / "deploy" / "crontab").read_text().splitlines()
    shipped = [line for line in lines if line[:1] == "*" or line[:1].isdigit()]
    [shown] = re.findall(
        r"^```\n(\*.*?)\n```", (ROOT / "docs" / "run-modes.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown.splitlines() == shipped
