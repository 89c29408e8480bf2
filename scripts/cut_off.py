"""What `make up` and `make destroy` do first of all: refuse a stack whose last update was killed in the middle.

Pulumi says no more than a warning then, and makes the same a second time. The first ones run on and cost, in no state
and in no fleet document.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from gpufleet.prices.plan.preview import as_list, as_map
from scripts.big_update import MOVES

COSTLY: Final = MOVES.keys() - {"aws:ec2/launchTemplate:LaunchTemplate"}
"""Pulumi's types of what costs by the hour."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 nothing was cut off; 1 something may be there that the stack does not know."""
    parser = argparse.ArgumentParser(prog="python -m scripts.cut_off", description="Was the last update killed?")
    parser.add_argument("stack")
    stack = parser.parse_args(arguments).stack
    found = subprocess.run(
        ["pulumi", "stack", "export", "--stack", stack, "--non-interactive"],
        capture_output=True,
        text=True,
        check=False,
    )
    left = begun(found.stdout) if found.returncode == 0 else ()  # no such stack yet: nothing was begun
    if not left:
        return 0
    lines = "".join(f"  {urn}\n" for urn in left)
    sys.stderr.write(
        f"an update of {stack} was killed while it made these, which may be there and cost:\n{lines}"
        'Nothing was changed. docs/runbook.md, "An update that was killed", says how to end and forget them.\n'
    )
    return 1


def begun(exported: str) -> tuple[str, ...]:
    """URNs of what costs and whose creation did not end, of what `pulumi stack export` prints."""
    deployment = as_map(as_map(json.loads(exported)).get("deployment"))
    pending = map(as_map, as_list(deployment.get("pending_operations")))
    made = [as_map(one["resource"]) for one in pending if one.get("type") == "creating"]
    return tuple(str(one["urn"]) for one in made if one.get("type") in COSTLY)


if __name__ == "__main__":
    sys.exit(main())
