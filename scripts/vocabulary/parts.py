"""Splits a file into the parts that are checked: identifiers, literals, docstrings, comments and text."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class Kind(StrEnum):
    """Where a text occurs."""

    MODULE = "module"
    CLASS = "class"
    FUNCTION = "function"
    ARGUMENT = "argument"
    VARIABLE = "variable"
    ATTRIBUTE = "attribute"
    LITERAL = "literal"
    DOCSTRING = "docstring"
    COMMENT = "comment"
    PROSE = "prose"
    """Markdown outside code fences."""
    FILE = "file"
    """Any other text file."""


IDENTIFIERS: Final = frozenset({Kind.MODULE, Kind.CLASS, Kind.FUNCTION, Kind.ARGUMENT, Kind.VARIABLE, Kind.ATTRIBUTE})
GROUPS: Final = {
    "identifier": IDENTIFIERS,
    "text": frozenset({Kind.DOCSTRING, Kind.COMMENT, Kind.PROSE, Kind.FILE, Kind.LITERAL}),
    "shown": frozenset({Kind.PROSE, Kind.FILE, Kind.LITERAL}),
}
"""Names of several kinds in `banned.toml`. `shown`: what users see."""


@dataclass(frozen=True, slots=True)
class Part:
    """A text and its line. For identifiers, the text is the name as written."""

    line: int
    kind: Kind
    text: str


def words_of(name: str) -> str:
    """Return the words of an identifier in lower case, separated by spaces: `_HTTPServer2` becomes `http server
    2`.
    """
    return " ".join(word.lower() for word in _WORD.findall(name))


def parts_of(path: str, text: str) -> Iterator[Part]:
    """Yield the parts of a file. Raises SyntaxError for Python that cannot be parsed."""
    yield from _names(PurePosixPath(path))
    if path.endswith(".py"):
        yield from _python(text)
    elif path.endswith(".md"):
        yield from _markdown(text)
    else:
        yield from (Part(number, Kind.FILE, line) for number, line in enumerate(text.splitlines(), 1))


def _names(path: PurePosixPath) -> Iterator[Part]:
    """Yield a file's name. For `__init__.py`, yield the name of the package folder."""
    yield Part(1, Kind.MODULE, path.parent.name if path.stem == "__init__" else path.stem)


def _python(text: str) -> Iterator[Part]:
    tree = ast.parse(text)
    docstrings: set[ast.expr] = set()
    for node in ast.walk(tree):
        docstrings.update(_docstrings(node))
    for node in ast.walk(tree):
        yield from _defined(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = Kind.DOCSTRING if node in docstrings else Kind.LITERAL
            yield from (Part(node.lineno + at, kind, line) for at, line in enumerate(node.value.split("\n")))
    if "#" in text:
        yield from _comments(text)


def _docstrings(node: ast.AST) -> Iterator[ast.expr]:
    """Yield strings that are statements: docstrings, also those of attributes."""
    if isinstance(node, DOCUMENTED):
        yield from (
            one.value for one in node.body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        )


def _defined(node: ast.AST) -> Iterator[Part]:  # noqa: C901 - one case per kind of node
    match node:
        case ast.ClassDef(name=name, lineno=line):
            yield Part(line, Kind.CLASS, name)
        case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
            yield Part(line, Kind.FUNCTION, name)
        case ast.arg(arg=name, lineno=line):
            yield Part(line, Kind.ARGUMENT, name)
        case ast.Name(id=name, ctx=ast.Store(), lineno=line):
            yield Part(line, Kind.VARIABLE, name)
        case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
            yield Part(line, Kind.ATTRIBUTE, name)
        case ast.ExceptHandler(name=str(name), lineno=line) | ast.MatchAs(name=str(name), lineno=line):
            yield Part(line, Kind.VARIABLE, name)
        case ast.MatchStar(name=str(name), lineno=line):
            yield Part(line, Kind.VARIABLE, name)
        case ast.alias(asname=str(name), lineno=line):
            yield Part(line, Kind.VARIABLE, name)
        case _:
            pass


def _comments(text: str) -> Iterator[Part]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Part(token.start[0], Kind.COMMENT, token.string)


def _markdown(text: str) -> Iterator[Part]:
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.lstrip()[:3]
        if fence:
            fence = "" if mark == fence else fence
        elif mark in ("```", "~~~"):
            fence = mark
        else:
            yield Part(number, Kind.PROSE, line)
