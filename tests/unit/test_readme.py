"""Every command that the front pages name exists, with the options that they give it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.main import build

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("docs/index.md", "docs/first-week.md", "docs/limits.md", "docs/run-modes.md", "docs/runbook.md"),
)
LINE = re.compile(r"gpufleet( +[^`|;&#)\n]*)?")


def lines_of(page: str) -> list[str]:
    """What follows `gpufleet` in inline code and in fenced blocks, pipes and comments cut off."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines() if re.match(r"\s*(\$ |gpufleet)", line)]
    inline = [code for code in re.findall(r"`([^`\n]+)`", text) if code.startswith("gpufleet ")]
    return sorted({found[0].strip() for line in typed + inline for found in LINE.finditer(line)})


SAID = [(page, line) for page in PAGES for line in lines_of(page)]


def test_the_pages_name_commands() -> None:
    assert len([line for page, line in SAID if page == "README.md"]) > 15


@pytest.fixture(scope="module")
def tree() -> Any:
    return get_command(build())


@pytest.mark.parametrize(("page", "line"), SAID, ids=[f"{page}: {line}" for page, line in SAID])
def test_a_command_of_a_page_exists(tree: Any, page: str, line: str) -> None:
    command, words = tree, shlex.split(line)[1:]
    # typer brings a click of its own, so groups are told by what they have
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in command.commands, f"{page} names `{line}`; there is no {name!r}"
        command = command.commands[name]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    assert given <= known | {"--help"}, f"{page} names `{line}`"
