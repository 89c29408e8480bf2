"""First step of `make destroy`, and of `make up` with a large update: pauses a stack's watchdogs, or refuses.

Pulumi runs no program on destroy, so the stack itself cannot check this. A direct `pulumi destroy` bypasses this
step.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url

from app.fleets import load_one
from scripts import stack_reading
from scripts.big_update import PlanError, ended

SPAN: Final = "2h"
"""Duration of the pause. It expires, so an abandoned destroy does not leave a fleet without watchdogs."""


LOCAL: Final = "-local"
"""Suffix of stacks of the embedded cloud. Their watchdogs run on this machine only."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status. 0: paused, no fleet to pause, or with --if-big a small update. 1: not paused, so the
    stack must not be changed.
    """
    parser = argparse.ArgumentParser(prog="python -m scripts.pause_first", description="Pause a stack's watchdogs.")
    parser.add_argument("stack")
    parser.add_argument("--reason", required=True)
    parser.add_argument("--if-big", action="store_true", help="only before an update that ends groups or machines")
    given = parser.parse_args(arguments)
    try:
        url = (stack_reading.read(given.stack, "output", "fleet_url") or "").strip()
    except stack_reading.StackReadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not url:
        sys.stderr.write(f"stack {given.stack} has no fleet yet, so there are no watchdogs to pause\n")
        return 0
    if given.if_big and (answer := _big(given.stack)) is not None:
        return answer
    if given.stack.endswith(LOCAL) and not watched(url):
        sys.stderr.write("no watchdog has ever run on this machine, so there is none to pause\n")
        return 0
    pause = ["pause", "all", "--reason", given.reason, "--for", SPAN, "--fleet", url]
    if subprocess.run([sys.executable, "-m", "cli.main", *pause], check=False).returncode == 0:
        return 0
    sys.stderr.write(
        "The watchdogs are not paused, so nothing was changed. Pause them where their ledger is (the control host:"
        f" `gpufleet pause all --reason '{given.reason}' --for {SPAN}`; `gpufleet status` shows it), then run"
        " make with PAUSED=yes.\n"
    )
    return 1


def _big(stack: str) -> int | None:
    """Return None if the plan terminates machines, so the fleet must be paused. Otherwise return the exit status."""
    plan = subprocess.run(
        ["pulumi", "preview", "--json", "--stack", stack, "--non-interactive"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        if plan.returncode != 0:
            raise PlanError((plan.stderr or plan.stdout).strip()[-2000:])
        found = ended(plan.stdout)
    except PlanError as error:
        sys.stderr.write(f"the plan of {stack} could not be read, so nothing was changed: {error}\n")
        return 1
    for line in found:
        sys.stderr.write(f"{line}\n")
    return None if found else 0


def watched(fleet_url: str) -> bool:
    """Return whether the fleet has a ledger. The first pass of a watchdog creates it."""
    path = make_url(load_one(fleet_url).ledger_url).database
    return path is None or Path(path).exists()


if __name__ == "__main__":
    sys.exit(main())
