"""`gpufleet doctor`: checks this machine's tools, or an account's quotas for a fleet."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from app import quotas
from app.fleets import load
from cli import plugins
from cli.options import JsonOption
from cli.output import STDOUT, Exit, print_json
from gpufleet.domain.findings import Finding
from gpufleet.toolchain import checks
from gpufleet.toolchain.folders import find_folders


def register(parent: typer.Typer) -> None:
    """Add `doctor` to the command tree."""
    parent.command(name="doctor")(doctor)


def doctor(
    fleet: Annotated[
        list[str] | None,
        typer.Option(
            "--fleet", help="URL of a fleet document; repeatable. Check the quotas of its account, not this machine."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the tools on this machine, or the quotas of a fleet's account, and print a remedy for each problem.

    Exit code 3: at least one problem was found.
    """
    if fleet:
        findings = [finding for document in load(fleet) for finding in quotas.examine(document)]
    else:
        findings = _check_this_machine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    raise typer.Exit(Exit.DONE if all(finding.ok for finding in findings) else Exit.FOUND)


def _check_this_machine() -> list[Finding]:
    folders = find_folders(os.environ)
    found = list(checks.examine(folders, os.environ))
    for examine in plugins.load(plugins.CHECKS):
        found += examine(folders, os.environ)
    return found


def _print(findings: list[Finding]) -> None:
    width = max((len(finding.name) for finding in findings), default=0)
    for finding in findings:
        mark = "ok  " if finding.ok and not finding.remedy else "note" if finding.ok else "NO  "
        line = f"{mark}  {finding.name:<{width}}  {finding.found}"
        STDOUT.print(
            line + (f": {finding.remedy}" if finding.remedy else ""), highlight=False, markup=False, soft_wrap=True
        )
