"""Tests of the vocabulary check: the parts of a file that it reads, its findings, and valid lists."""

import json
import subprocess
from pathlib import Path

import pytest

from scripts.vocabulary import __main__ as command
from scripts.vocabulary.check import by_package, check_files, unused
from scripts.vocabulary.duplicates import duplicates
from scripts.vocabulary.lists import ListError, Lists, read_lists
from scripts.vocabulary.parts import Kind, parts_of, words_of

BANNED = """
[[banned]]
word = "tell"
forms = ["told"]
use = "'report'"

[[banned]]
word = "is no"
pattern = '(?<!there )is no (?!longer)'
use = "'is not a valid …'"

[[banned]]
word = "rest"
use = "'idle period'"
where = ["class"]
"""


def lists(folder: Path, allowed: str = "", banned: str = BANNED) -> Lists:
    (folder / "banned.toml").write_text(banned)
    (folder / "allowed.toml").write_text(allowed)
    return read_lists(folder / "banned.toml", folder / "allowed.toml")


def tree(folder: Path, **files: str) -> tuple[Path, list[str]]:
    """Write the files of a small tree. `__` in a name becomes a slash, and `init` becomes `__init__`."""
    root = folder / "tree"
    paths = {name.replace("__", "/").replace("init", "__init__") + ".py": text for name, text in files.items()}
    for path, text in paths.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root, sorted(paths)


def lines(folder: Path, text: str, allowed: str = "", name: str = "one.py") -> list[str]:
    (folder / name).write_text(text)
    return [str(one) for one in check_files(folder, [name], lists(folder, allowed)).findings]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("was_told", "was told"),
        ("_TOLD_AT", "told at"),
        ("HTTPServer", "http server"),
        ("RestView2", "rest view 2"),
        ("__init__", "init"),
    ],
)
def test_an_identifier_is_split_into_words(name: str, words: str) -> None:
    assert words_of(name) == words


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [
        ("class Told: ...", Kind.CLASS, "Told"),
        ("def told(): ...", Kind.FUNCTION, "told"),
        ("async def told(): ...", Kind.FUNCTION, "told"),
        ("def f(told): ...", Kind.ARGUMENT, "told"),
        ("f = lambda told: 1", Kind.ARGUMENT, "told"),
        ("told = 1", Kind.VARIABLE, "told"),
        ("[1 for told in ()]", Kind.VARIABLE, "told"),
        ("self.told = 1", Kind.ATTRIBUTE, "told"),
        ("import json as told", Kind.VARIABLE, "told"),
        ("try: ...\nexcept OSError as told: ...", Kind.VARIABLE, "told"),
    ],
)
def test_a_definition_is_an_identifier(source: str, kind: Kind, name: str) -> None:
    assert (kind, name) in [(part.kind, part.text) for part in parts_of("one.py", source)]


def test_a_use_of_a_name_is_reported_at_its_definition_alone(tmp_path: Path) -> None:
    assert lines(tmp_path, "told = 1\nprint(told)\n") == ["one.py:1: identifier 'told': use 'report'"]


def test_literals_docstrings_and_comments_have_a_kind_and_a_line() -> None:
    source = '"""First.\n\nThird told."""\n\nX = 1  # four\n"""Of X."""\nY = f"a {X} told"\n'
    found = [(part.line, part.kind, part.text) for part in parts_of("one.py", source)]
    assert (3, Kind.DOCSTRING, "Third told.") in found
    assert (5, Kind.COMMENT, "# four") in found
    assert (6, Kind.DOCSTRING, "Of X.") in found
    assert (7, Kind.LITERAL, " told") in found


def test_a_word_is_matched_whole_in_any_case_and_inside_a_key(tmp_path: Path) -> None:
    found = lines(tmp_path, 'A = "Told"\nB = "told_at"\nC = "untold tellers"\n')
    assert [line.split(":")[1] for line in found] == ["1", "2"]


def test_a_phrase_keeps_its_exceptions(tmp_path: Path) -> None:
    assert lines(tmp_path, "# there is no way\n# it is no longer here\n# it is no number\n") == [
        "one.py:3: comment 'is no ': use 'is not a valid …'"
    ]


def test_a_phrase_is_matched_in_an_identifier(tmp_path: Path) -> None:
    assert lines(tmp_path, "def it_is_no_number(): ...\n") == [
        "one.py:1: identifier 'it_is_no_number': use 'is not a valid …'"
    ]


def test_an_entry_applies_to_its_kinds_only(tmp_path: Path) -> None:
    assert lines(tmp_path, "class RestView: ...\nrest = 'the rest'\n") == [
        "one.py:1: identifier 'RestView': use 'idle period'"
    ]


def test_a_file_name_is_checked(tmp_path: Path) -> None:
    assert lines(tmp_path, "", name="told_once.py") == ["told_once.py:1: module 'told_once': use 'report'"]


def test_markdown_is_checked_outside_code_fences(tmp_path: Path) -> None:
    found = lines(tmp_path, "told\n```\ntold\n```\n`told`\n", name="one.md")
    assert [line.split(":")[1] for line in found] == ["1", "5"]


def test_other_text_is_checked_line_by_line(tmp_path: Path) -> None:
    assert lines(tmp_path, "a: 1\nb: told\n", name="one.yaml") == ["one.yaml:2: file 'told': use 'report'"]


def test_an_exception_is_for_its_files_its_word_and_its_name(tmp_path: Path) -> None:
    allowed = '[[allowed]]\nfiles = "o*.py"\nword = "tell"\nname = "told_at"\nreason = "a stored column"\n'
    assert lines(tmp_path, "told_at = told = 1\n", allowed) == ["one.py:1: identifier 'told': use 'report'"]


def test_an_exception_may_be_for_every_word(tmp_path: Path) -> None:
    allowed = '[[allowed]]\nfiles = "one.py"\nword = "*"\nreason = "frozen"\n'
    assert lines(tmp_path, "told = 1  # it is no number\n", allowed) == []


def test_an_unused_exception_is_reported(tmp_path: Path) -> None:
    allowed = '[[allowed]]\nfiles = "*.py"\nword = "tell"\nreason = "stored"\n'
    root, paths = tree(tmp_path, one="x = 1\n")
    read = lists(tmp_path, allowed)
    checked = check_files(root, paths, read)
    assert unused(read, checked.used) == ["allowed.toml: *.py: 'tell' is not found there any more: remove the entry"]


@pytest.mark.parametrize(
    ("banned", "allowed", "message"),
    [
        ("[[banned]]\nuse = 'x'\n", "", "banned.toml: an entry: expected a text for 'word'"),
        ("[[banned]]\nword = 'a'\n", "", "banned.toml: a: expected a text for 'use'"),
        ("[[banned]]\nword = 'a'\nuse = 'x'\nform = ['b']\n", "", "banned.toml: a: unknown key 'form'"),
        ("[[banned]]\nword = 'a'\nuse = 'x'\nwhere = ['name']\n", "", "banned.toml: a: where: unknown kind 'name'"),
        ("[[banned]]\nword = 'a'\nuse = 'x'\npattern = '('\n", "", "banned.toml: a: invalid pattern"),
        ("", "[[allowed]]\nfiles = '*'\nword = 'a'\n", "allowed.toml: *: expected a text for 'reason'"),
        ("", "[[class]]\nname = 'A'\n", "expected a text for 'reason'"),
        ("[[", "", "banned.toml: "),
    ],
)
def test_a_wrong_list_is_an_error_that_names_the_entry(
    tmp_path: Path, banned: str, allowed: str, message: str
) -> None:
    with pytest.raises(ListError) as raised:
        lists(tmp_path, allowed, banned)
    assert message in str(raised.value)


def test_a_public_class_is_defined_once_over_the_product(tmp_path: Path) -> None:
    source = "class Pass: ...\nclass _P: ..."
    root, paths = tree(tmp_path, app__a=source, cli__b=source, tests__c=source)
    (only,) = duplicates(root, paths, lists(tmp_path))
    assert only.startswith("class 'Pass' is defined 2 times (app/a.py, cli/b.py)")
    allowed = "[[class]]\nname = 'Pass'\nreason = 'one for each cloud'\n"
    assert duplicates(root, paths, lists(tmp_path, allowed)) == []


def test_an_exception_for_a_name_that_is_defined_once_is_reported(tmp_path: Path) -> None:
    root, paths = tree(tmp_path, app__a="class Pass: ...")
    allowed = "[[class]]\nname = 'Pass'\nreason = 'one for each cloud'\n"
    assert duplicates(root, paths, lists(tmp_path, allowed)) == [
        "allowed.toml: class 'Pass' is not defined twice: remove the entry"
    ]


def test_siblings_do_not_differ_by_a_plural_s_alone(tmp_path: Path) -> None:
    root, paths = tree(tmp_path, app__report="", app__reports="", cli__report="")
    (only,) = duplicates(root, paths, lists(tmp_path))
    assert only.startswith("siblings 'app/report' is defined 2 times (app/report, app/reports)")


def test_a_package_name_is_used_once(tmp_path: Path) -> None:
    root, paths = tree(tmp_path, control__init="", app__control__init="")
    (only,) = duplicates(root, paths, lists(tmp_path))
    assert only.startswith("package 'control' is defined 2 times (app/control, control)")


def test_implementations_for_each_cloud_and_other_distributions_may_share_a_name(tmp_path: Path) -> None:
    source = "class Bucket: ..."
    root, paths = tree(tmp_path, app__aws__a=source, app__gcp__a=source, localcloud__b=source)
    assert duplicates(root, paths, lists(tmp_path)) == []
    root, paths = tree(tmp_path, app__aws__b=source)
    assert len(duplicates(root, ["app/aws/a.py", "app/aws/b.py"], lists(tmp_path))) == 1


def test_counts_are_by_package_and_by_word(tmp_path: Path) -> None:
    root, paths = tree(tmp_path, app__a="told = 1", tests__app__b="told = tell = 1", gpufleet__x__c="# told")
    checked = check_files(root, paths, lists(tmp_path))
    assert by_package(checked.findings) == {"tests/app": 2, "app": 1, "gpufleet/x": 1}


def test_the_command_prints_findings_as_lines_counts_or_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, paths = tree(tmp_path, app__a="told = 1\n", app__b="x = 1\n")
    monkeypatch.setattr(command, "ROOT", root)
    monkeypatch.setattr(command, "tracked", lambda: paths)
    monkeypatch.setattr(command, "read_lists", lambda: lists(tmp_path))
    assert command.main([]) == 1
    assert capsys.readouterr().out == "app/a.py:1: identifier 'told': use 'report'\n"
    assert command.main(["app", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["words"][0]["found"] == "told"
    assert command.main(["./app/", "--summary"]) == 1
    assert capsys.readouterr().out.split() == ["1", "app", "1", "tell"]
    assert command.main(["app/b.py"]) == 0
    assert command.main(["cli"]) == 2


def test_files_without_a_suffix_are_checked(tmp_path: Path) -> None:
    names = [".ci/run", ".github/CODEOWNERS", "Makefile", "a.csv", "a.py", "deploy/Containerfile", "deploy/crontab"]
    for name in [*names, "LICENSE", "tests/data/run"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("told\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    assert command.tracked(tmp_path) == [name for name in names if name != "a.csv"]


def test_the_projects_own_lists_can_be_read() -> None:
    assert len(read_lists().banned) > 50


def test_the_tree_uses_no_banned_word_and_no_name_twice() -> None:
    assert command.main([]) == 0
