"""The command. Exit code: 0 no findings, 1 findings, 2 a list or a file cannot be read."""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.vocabulary.check import Checked, by_package, check_files, unused
from scripts.vocabulary.duplicates import duplicates
from scripts.vocabulary.lists import ListError, read_lists

ROOT: Final = Path(__file__).parents[2]
SUFFIXES: Final = (".py", ".md", ".html", ".js", ".css", ".toml", ".yaml", ".yml", ".service", ".sh", "")
"""The empty one: files without a suffix, such as `Makefile`."""
EXCLUDED: Final = (
    "tests/data/",
    "tests/recorded/",
    "typings/",
    "scripts/vocabulary/",
    "tests/scripts/test_vocabulary.py",
    "LICENSE",
)
"""Recorded data, stubs of other libraries, the word lists themselves, and the text of the licence."""


def tracked(root: Path = ROOT) -> list[str]:
    """Return every file of the tree that is checked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = sorted(set(listed.stdout.split("\0")))
    return [
        name
        for name in names
        if PurePosixPath(name).suffix in SUFFIXES and not name.startswith(EXCLUDED) and (root / name).is_file()
    ]


def within(paths: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the files that are in one of the folders or are named themselves."""
    chosen = [one.removeprefix("./").rstrip("/") for one in wanted]
    return [path for path in paths if any(path == one or path.startswith(f"{one}/") for one in chosen)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the whole tree, or selected files and folders."""
    options = _options(arguments)
    try:
        lists = read_lists()
        files = tracked()
        chosen = within(files, options.paths) if options.paths else files
        if not chosen:
            print(f"vocabulary: no checked file in {', '.join(options.paths)}", file=sys.stderr)
            return 2
        checked = check_files(ROOT, chosen, lists)
        # exceptions and duplicates concern the whole tree
        others = [] if options.paths else [*unused(lists, checked.used), *duplicates(ROOT, files, lists)]
    except (ListError, SyntaxError, OSError, subprocess.CalledProcessError) as error:
        print(f"vocabulary: failed: {error}", file=sys.stderr)
        return 2
    _print(options, checked, others)
    total = f"{len(checked.findings)} banned words, {len(others)} other findings in {len(chosen)} files"
    print(f"vocabulary: {total}", file=sys.stderr)
    return 1 if checked.findings or others else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.vocabulary", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files and folders, relative to the root; none: the whole tree")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--summary", action="store_true", help="print counts by package and by word")
    return parser.parse_args(arguments)


def _print(options: argparse.Namespace, checked: Checked, others: Sequence[str]) -> None:
    if options.summary:
        words = Counter(finding.word for finding in checked.findings)
        packages = by_package(checked.findings)
        counts = {"packages": packages, "words": dict(words.most_common()), "others": len(others)}
        print(json.dumps(counts, indent=2) if options.json else _table(packages, words))
    elif options.json:
        print(json.dumps({"words": [asdict(one) for one in checked.findings], "others": list(others)}, indent=2))
    else:
        for line in [*map(str, checked.findings), *others]:
            print(line)


def _table(packages: dict[str, int], words: Counter[str]) -> str:
    rows = [*packages.items(), ("", 0), *words.most_common()]
    return "\n".join(f"{count:6} {name}" if name else "" for name, count in rows)


if __name__ == "__main__":
    sys.exit(main())
