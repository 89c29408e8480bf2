"""`python -m benchmarks.comparison --engine sglang [--record FOLDER]`: compares real engines with their simulators.

It prints a table and each difference, and exits with 1 if there is one.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.__main__ import markdown
from benchmarks.comparison import recording
from benchmarks.comparison.results import KINDS, SIMULATED, Result, observe, recorded, results, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    parser.add_argument("--engine", choices=KINDS, action="append")
    parser.add_argument("--record", type=Path, help="folder for the observations of the real engines")
    parser.add_argument("--recorded", type=Path, help="read them from this folder instead of starting the engines")
    given = parser.parse_args(arguments)
    found: list[Result] = []
    for kind in given.engine or KINDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if given.recorded:
                real = recording.read(recorded(kind, given.recorded))
            else:
                real = observe(kind, folder, is_real=True)
            if given.record:
                recording.write(recorded(kind, given.record), real)
            simulated = observe(kind, folder, is_real=False) if kind in SIMULATED else ()
            found += results(kind, real, simulated)
    print(markdown(table(found)))
    lines = [f"{one.kind}, {one.subject}: {line}" for one in found for line in one.differences]
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
