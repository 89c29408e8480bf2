"""First step of `make up` and `make destroy`: refuses a stack whose last update was killed.

Pulumi only prints a warning in that case and creates the resources again. The first ones continue to run and cost
money, in no state and in no fleet document.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from gpufleet.prices.plan.preview import as_list, as_map
from scripts import stack_reading
from scripts.big_update import MOVES

COSTLY: Final = MOVES.keys() - {"aws:ec2/launchTemplate:LaunchTemplate"}
"""Pulumi types of resources that cost money per hour."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status. 0: no update was interrupted. 1: resources may exist that the stack does not know, or
    the stack cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m scripts.cut_off", description="Was the last update killed?")
    parser.add_argument("stack")
    stack = parser.parse_args(arguments).stack
    try:
        exported = stack_reading.read(stack, "export")
    except stack_reading.StackReadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    left = () if exported is None else begun(exported)  # None: a new stack, so no update was started
    if not left:
        return 0
    lines = "".join(f"  {urn}\n" for urn in left)
    sys.stderr.write(
        f"an update of {stack} was killed while it created these resources, which may exist and cost money:\n{lines}"
        'Nothing was changed. docs/runbook.md, "An update that was killed", describes how to delete them and'
        " remove them from the state.\n"
    )
    return 1


def begun(exported: str) -> tuple[str, ...]:
    """Return URNs of resources that cost money and whose creation did not finish, from the output of `pulumi stack
    export`.
    """
    deployment = as_map(as_map(json.loads(exported)).get("deployment"))
    pending = map(as_map, as_list(deployment.get("pending_operations")))
    made = [as_map(one["resource"]) for one in pending if one.get("type") == "creating"]
    return tuple(str(one["urn"]) for one in made if one.get("type") in COSTLY)


if __name__ == "__main__":
    sys.exit(main())
