"""Seeds one known defect at a time into a copy of the tree and runs the tests that must detect it.

`tests/seeded_defects.toml` has the list. It shows that a change of the code or of the tests has not weakened the
tests; run it before and after the change. The working tree is never modified.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
LIST: Final = ROOT / "tests" / "seeded_defects.toml"
LIMIT_S: Final = 600
"""Time limit in seconds for the tests of one defect."""
_PYTEST: Final = (
    "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "--hypothesis-seed=0",
    "-p", "no:randomly", "-p", "no:cacheprovider",
)  # fmt: skip
_FAILED: Final = 1
"""pytest's exit code if tests ran and some failed."""


class Verdict(StrEnum):
    """Result of a defect."""

    FOUND = "found"
    SURVIVED = "survived"
    UNCLEAR = "unclear"
    """The tests could not run. Code with a defect must still be importable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One wrong change."""

    id: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Files or node ids. At least one of these tests must fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of one tested defect."""

    defect: Defect
    verdict: Verdict
    seconds: float
    last_line: str
    """The last line of pytest's output."""


class SeedError(Exception):
    """The list does not match the tree. The message contains the entry and the reason."""


def defects(path: Path = LIST) -> tuple[Defect, ...]:
    """Return the list. Raises KeyError and TypeError for an entry with a missing or an unknown field."""
    found: list[dict[str, Any]] = tomllib.loads(path.read_text("utf-8"))["defect"]
    return tuple(Defect(tests=tuple(entry.pop("tests")), **entry) for entry in found)


def seeded(defect: Defect, tree: Path) -> str:
    """Return the text of the file with the defect. Raises SeedError if the old text does not occur exactly once."""
    text = (tree / defect.file).read_text("utf-8")
    if (times := text.count(defect.old)) != 1:
        raise SeedError(
            f"{defect.id}: its old text occurs {times} times in {defect.file}, not once: repair the entry"
        )
    return text.replace(defect.old, defect.new)


def trials(chosen: Sequence[Defect], tree: Path) -> Iterator[Trial]:
    """Test each defect in a copy of the tree. Raises SeedError, also if a test fails without a defect."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-defects-") as folder:
        copy = Path(folder) / "tree"
        _copy(tree, copy)
        code, last_line = _pytest(copy, sorted({test for defect in chosen for test in defect.tests}))
        if code != 0:
            raise SeedError(f"the tests fail without any defect: {last_line}")
        for defect in chosen:
            yield _trial(defect, copy)


def _trial(defect: Defect, copy: Path) -> Trial:
    path, began = copy / defect.file, time.monotonic()
    whole = path.read_text("utf-8")
    path.write_text(seeded(defect, copy), "utf-8")
    try:
        code, last_line = _pytest(copy, defect.tests)
    finally:
        path.write_text(whole, "utf-8")
    verdicts = {0: Verdict.SURVIVED, _FAILED: Verdict.FOUND}
    seconds = time.monotonic() - began
    return Trial(defect=defect, verdict=verdicts.get(code, Verdict.UNCLEAR), seconds=seconds, last_line=last_line)


def _copy(tree: Path, copy: Path) -> None:
    """Copy tracked files, and new files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, copy / name)


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    # Write no bytecode: a defect's bytecode could be reused, because two versions within a second may have the same
    # size. Remove the options and workers of an enclosing test run
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *_PYTEST, *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end within {LIMIT_S} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: all defects were detected. 1: the list does not match the tree. 2: wrong usage. 3: a
    defect was not detected.
    """
    parser = argparse.ArgumentParser(prog="python -m scripts.seeded_defects", description=__doc__)
    parser.add_argument("--only", metavar="ID", nargs="+", help="these defects alone")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, with its own list")
    options = parser.parse_args(arguments)
    known = defects(options.tree / LIST.relative_to(ROOT))
    chosen = [defect for defect in known if not options.only or defect.id in options.only]
    if unknown := set(options.only or ()) - {defect.id for defect in known}:
        parser.error(f"no such defect: {', '.join(sorted(unknown))}")
    began, done = time.monotonic(), list[Trial]()
    try:
        for trial in trials(chosen, options.tree):
            done.append(trial)
            line = f"{len(done)}/{len(chosen)} {trial.verdict} {trial.defect.id} ({trial.seconds:.0f} s)"
            print(
                line if trial.verdict is Verdict.FOUND else f"{line}: {trial.last_line}", file=sys.stderr, flush=True
            )
    except SeedError as error:
        print(error, file=sys.stderr)
        return 1
    found = sum(trial.verdict is Verdict.FOUND for trial in done)
    seconds = time.monotonic() - began
    if options.json:
        rows = [{"id": one.defect.id, "verdict": one.verdict, "seconds": round(one.seconds, 1)} for one in done]
        print(json.dumps({"found": found, "of": len(done), "seconds": round(seconds, 1), "defects": rows}, indent=1))
    else:
        print(f"{found} of {len(done)} seeded defects found in {seconds:.0f} s")
    return 0 if found == len(done) else 3


if __name__ == "__main__":
    sys.exit(main())
