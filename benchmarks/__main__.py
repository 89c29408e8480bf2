"""`make bench`, or `python -m benchmarks [NAME …] [--out docs/benchmarks.md]`: runs benchmarks and prints their
tables.

A benchmark is a module `benchmarks/bench_<name>.py` with `run() -> Iterator[Table]`. If one fails, the failure is
reported, the others run, and the exit status is 1.
"""

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol, cast

from benchmarks import page
from benchmarks.table import Table

FOLDER: Final = Path(__file__).parent
PREFIX: Final = "bench_"


class Benchmark(Protocol):
    """A benchmark module of this folder."""

    def run(self) -> Iterator[Table]:
        """Yield each table when it is measured."""
        ...


def names() -> tuple[str, ...]:
    """Return the names of all benchmarks, in order."""
    return tuple(sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob(f"{PREFIX}*.py")))


def machine() -> str:
    """Return a one-line description of the machine: cores, memory, processor, Python."""
    processor = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or "unknown processor",
    )
    total_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    memory = f"{total_kib / 1024**2:.0f} GiB" if total_kib else "unknown memory"
    return f"{os.cpu_count()} cores ({processor}), {memory}, Python {platform.python_version()}, {platform.system()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def markdown(table: Table) -> str:
    """Return the table as Markdown that is also readable in a terminal."""
    widths = [max(len(row[i]) for row in (table.columns, *table.rows)) for i in range(len(table.columns))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    parts = [f"### {table.title}", "", line(table.columns), rule, *(line(row) for row in table.rows)]
    return "\n".join([*parts, *(f"\n{note}" for note in table.notes)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks (default: all). Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmarks and print their tables."
    )
    parser.add_argument("name", nargs="*", choices=(*names(), []), help="default: all")
    parser.add_argument(
        "--out", type=Path, help="write the tables into this Markdown file too; what others measured there stays"
    )
    given = parser.parse_args(arguments)
    wanted = cast("list[str]", given.name) or list(names())
    where = machine()
    print(where, end="\n\n")
    failed: list[str] = []
    measured: dict[str, str] = {}
    for name in wanted:
        print(f"running {name} …", file=sys.stderr, flush=True)
        try:
            benchmark = cast("Benchmark", importlib.import_module(f"benchmarks.{PREFIX}{name}"))
            parts = [f"{datetime.now(UTC):%Y-%m-%d}, {where}.\n"]
            for table in benchmark.run():
                parts.append(markdown(table))
                print(parts[-1], flush=True)
            measured[name] = "\n".join(parts)
        except Exception as error:  # noqa: BLE001 - one benchmark's failure must not lose the others' numbers
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if given.out:
        page.write(cast("Path", given.out), measured)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
