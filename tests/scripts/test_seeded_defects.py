"""Tests that the list of seeded defects matches the tree, and tests of its runner."""

import subprocess
from pathlib import Path

import pytest

from scripts.seeded_defects import ROOT, Defect, SeedError, Verdict, defects, seeded, trials

LIST = defects()


def test_the_list_has_at_least_thirty_defects_with_unique_names() -> None:
    assert len({defect.id for defect in LIST}) == len(LIST) >= 30


@pytest.mark.parametrize("defect", LIST, ids=lambda defect: defect.id)
def test_a_defect_matches_the_tree(defect: Defect) -> None:
    compile(seeded(defect, ROOT), defect.file, "exec")
    assert defect.old != defect.new
    assert defect.tests
    for test in defect.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text("utf-8")


def small(tree: Path, new: str) -> Defect:
    """Write a tree with one function and one test, and return a defect of it."""
    (tree / "one.py").write_text("def one() -> int:\n    return 1\n")
    (tree / "test_one.py").write_text("from one import one\n\n\ndef test_one() -> None:\n    assert one() > 0\n")
    return Defect(id="one", what="", file="one.py", old="return 1", new=new, tests=("test_one.py",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an empty checkout."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("new", "verdict"),
    [("return 0", Verdict.FOUND), ("return 2", Verdict.SURVIVED), ("return (", Verdict.UNCLEAR)],
)
def test_a_defect_is_found_survives_or_is_unclear(tree: Path, new: str, verdict: Verdict) -> None:
    defect = small(tree, new)
    (trial,) = trials([defect], tree)
    assert trial.verdict is verdict
    assert (tree / "one.py").read_text() == "def one() -> int:\n    return 1\n"


def test_a_tree_with_failing_tests_is_refused(tree: Path) -> None:
    defect = small(tree, "return 0")
    (tree / "one.py").write_text("def one() -> int:\n    return 1 - 1\n")
    with pytest.raises(SeedError, match="fail without any defect"):
        list(trials([defect], tree))


def test_a_missing_old_text_is_reported(tree: Path) -> None:
    defect = small(tree, "return 0")
    (tree / "one.py").write_text("def one() -> int:\n    return 3\n")
    with pytest.raises(SeedError, match="one: its old text occurs 0 times in one.py"):
        seeded(defect, tree)
