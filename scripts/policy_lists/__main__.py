"""`python -m scripts.policy_lists [--check]`."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.policy_lists import iam_aws, iam_google, resource_types
from scripts.policy_lists.program import Program, run

FOLDER: Final = Path(__file__).parents[2] / "policies" / "lists"
LISTS: Final[Mapping[str, Callable[[Program], Any]]] = {
    "aws_iam.json": iam_aws.of,
    "google_iam.json": iam_google.of,
    "resource_types.json": resource_types.of,
}
"""Maps a file name to the function that creates its content from the program's resources."""


def texts() -> dict[str, str]:
    """Return the text of every list, by file name."""
    program = run()
    return {name: json.dumps(make(program), indent=1, sort_keys=True) + "\n" for name, make in LISTS.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the lists. Return the exit code. 0: written, or all current. 1: a list is not current (`--check`). 2:
    wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="python -m scripts.policy_lists", description="Write the lists of the policy pack from the program."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; name the lists that are not current")
    options = parser.parse_args(arguments)
    found = 0
    for name, text in texts().items():
        path = FOLDER / name
        if not options.check:
            path.write_text(text, "utf-8")
            print(f"wrote policies/lists/{name}", file=sys.stderr)
        elif not path.is_file() or path.read_text("utf-8") != text:
            print(f"policies/lists/{name} is not current: run `python -m scripts.policy_lists`", file=sys.stderr)
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
