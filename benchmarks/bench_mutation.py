"""Runs mutation tests on the cost code: how many small wrong changes do its fast tests detect?

mutmut changes one operator, constant or argument at a time, and a failing test kills the mutant. The sample uses a
fixed seed, so a run takes minutes and two runs of one tree test the same mutants. All changes are made in a copy.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from benchmarks.table import Table

ROOT: Final = Path(__file__).parent.parent
SEED: Final = 20_261_121
DRAWN: Final = 150
"""Sample size. Each mutant takes half a second of a core, or more if it survives."""
LIMIT_S: Final = 1_200

MODULES: Final = {
    "gpufleet/domain/money.py": "exact sums, rounding, largest remainder",
    "gpufleet/prices/book.py": "the price in force",
    "gpufleet/ledger/counters.py": "tokens from raw counters",
    "gpufleet/costs/slots.py": "busy and idle slots",
    "gpufleet/costs/allocation.py": "charges and the billing rules of spot",
    "gpufleet/costs/pricing.py": "the price of each part of a run",
    "gpufleet/costs/commitments.py": "blocks, plans and what is shared",
}
TESTS: Final = (
    "gpufleet/domain/test_money.py",
    "gpufleet/prices/test_book.py",
    "gpufleet/costs/test_tokens.py",
    "gpufleet/costs/test_slots.py",
    "gpufleet/costs/test_allocation.py",
    "gpufleet/costs/test_charges_in_full.py",
    "gpufleet/prices/test_prices_in_full.py",
)
_PACKAGES: Final = ("gpufleet",)


class Verdict(StrEnum):
    """Result of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    UNTESTED = "met no test"
    SLOW = "too slow"
    UNCLEAR = "unclear"


_VERDICTS: Final = {0: Verdict.SURVIVED, 1: Verdict.KILLED, 3: Verdict.KILLED, 5: Verdict.UNTESTED,
                    33: Verdict.UNTESTED, 24: Verdict.SLOW, 152: Verdict.SLOW, 255: Verdict.SLOW, 36: Verdict.SLOW,
                    -24: Verdict.SLOW, -9: Verdict.SLOW}  # fmt: skip
"""Verdicts by mutmut's exit code. A mutant that does not terminate counts as detected, in a separate column."""


def run() -> Iterator[Table]:
    """Draw a sample, test it, and count the results."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-mutation-") as folder:
        work = Path(folder)
        _copy(work)
        _mutmut(work, ["nothing.at.all"])  # this creates the mutants, and no mutant has this name
        names = drawn([name for found in _found(work).values() for name in found])
        _mutmut(work, names)
        found = _found(work)
    yield table({path: {n: v for n, v in mutants.items() if n in set(names)} for path, mutants in found.items()},
                {path: len(mutants) for path, mutants in found.items()})  # fmt: skip


def drawn(names: Sequence[str]) -> list[str]:
    """Return the sample of mutants. It depends only on the names."""
    ordered = sorted(names)
    return sorted(random.Random(SEED).sample(ordered, min(DRAWN, len(ordered))))


def table(tried: Mapping[str, Mapping[str, Verdict]], made: Mapping[str, int]) -> Table:
    """Return a table with one row per module and a total. The score is the share of tested mutants that were killed
    or too slow.
    """
    rows: list[tuple[str, ...]] = []
    whole: list[Verdict] = []
    for path, mutants in tried.items():
        whole += mutants.values()
        rows.append((path, MODULES[path], str(made[path]), *_counts(list(mutants.values()))))
    rows.append(("together", "", str(sum(made.values())), *_counts(whole)))
    alive = sorted(name for mutants in tried.values() for name, v in mutants.items() if v is not Verdict.KILLED)
    return Table(
        title="Mutation: small wrong changes that the money code's fast tests notice",
        columns=("module", "what", "mutants", "tried", *Verdict, "score"),
        rows=tuple(rows),
        notes=(
            f"mutmut {_version()}; {DRAWN} mutants drawn with seed {SEED}; tests: {', '.join(TESTS)} below tests/,"
            " each mutant against those that reach its function.",
            "Not killed: " + (", ".join(alive) or "none") + ".",
        ),
    )


def _counts(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    seen = sum(one in (Verdict.KILLED, Verdict.SLOW) for one in verdicts)
    score = f"{seen / len(verdicts):.1%}" if verdicts else "none tried"
    return (str(len(verdicts)), *(str(verdicts.count(one)) for one in Verdict), score)


def _copy(work: Path) -> None:
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("data", "fixtures"):
        shutil.copytree(ROOT / "tests" / folder, work / "tests" / folder)
    shutil.copy(ROOT / "tests" / "conftest.py", work / "tests")
    for name in TESTS:
        (work / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, work / "tests" / name)
    arguments = ["-p", "no:randomly", "-p", "no:cacheprovider", "--import-mode=importlib", "--hypothesis-seed=0"]
    settings: dict[str, object] = {
        "source_paths": list(_PACKAGES),
        "only_mutate": list(MODULES),
        "also_copy": ["tests"],
        "pytest_add_cli_args": arguments,
        "pytest_add_cli_args_test_selection": [f"tests/{name}" for name in TESTS],
        # relative to the duration of its tests without a change; a mutant that exceeds it is stopped
        "timeout_multiplier": 6.0,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    markers = '[tool.pytest.ini_options]\nmarkers = ["slow: a slow proof"]\n'
    (work / "pyproject.toml").write_text("\n".join(["[tool.mutmut]", *lines, "", markers]))


def _mutmut(work: Path, names: Sequence[str]) -> None:
    """Run mutmut. Raises RuntimeError with the end of its output if it created no mutants."""
    call = [sys.executable, "-m", "mutmut", "run", "--max-children", str(os.cpu_count() or 1), *names]
    done = subprocess.run(call, cwd=work, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if not any(_found(work).values()) or (done.returncode and "nothing matches" not in done.stderr + done.stdout):
        raise RuntimeError(f"mutmut failed: {(done.stdout + done.stderr)[-2_000:]}")


def _found(work: Path) -> dict[str, dict[str, Verdict]]:
    """Return the mutants and their verdicts, by module."""
    found: dict[str, dict[str, Verdict]] = {}
    for path in MODULES:
        meta = work / "mutants" / f"{path}.meta"
        codes = json.loads(meta.read_text())["exit_code_by_key"] if meta.exists() else {}
        found[path] = {name: verdict(code) for name, code in codes.items()}
    return found


def verdict(code: int | None) -> Verdict:
    """Return the meaning of mutmut's exit code for one mutant. None: it was not tested."""
    return Verdict.UNCLEAR if code is None else _VERDICTS.get(code, Verdict.UNCLEAR)


def _version() -> str:
    from importlib.metadata import version

    return version("mutmut")
