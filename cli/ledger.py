"""`gpufleet ledger`: verifies, exports and imports the ledger."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from app import backups
from app.fleets import load, load_only
from cli import ledger_backup
from cli.files import write_lines
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, Exit, print_json, write
from gpufleet.ledger.invariants import Breach

_MOST = 50
_ONE = "name one --fleet: an export holds one ledger"


def register(app: typer.Typer) -> None:
    ledger = typer.Typer(help="The ledger: facts, decisions, messages.", no_args_is_help=True)
    ledger.command("verify")(verify)
    ledger.command("export")(export)
    ledger.command("import")(import_)
    ledger_backup.register(ledger)
    app.add_typer(ledger, name="ledger")


def verify(fleet: FleetOption = None, as_json: JsonOption = False) -> None:
    """Prove that the ledger's facts hold together. Exits with 3 where they do not."""
    found: list[Breach] = []
    for document in load(fleet):
        found += backups.breaches(document)
    if as_json:
        print_json(
            {"sound": not found, "breaches": [{"rule": b.rule, "where": b.where, "found": b.found} for b in found]}
        )
    else:
        for one in found[:_MOST]:
            write(f"broken: {one.rule}: {one.where}: {one.found}\n")
        more = f", {len(found) - _MOST} not shown" if len(found) > _MOST else ""
        write(f"{len(found)} breaches{more}\n" if found else "the ledger is sound\n")
    if found:
        raise typer.Exit(Exit.FOUND)


def export(
    fleet: FleetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write into this file instead of stdout.")] = None,
) -> None:
    """Write the whole ledger as lines of JSON."""
    write_lines(backups.export(load_only(fleet, _ONE), datetime.now(UTC)), out)


def import_(
    file: Annotated[Path, typer.Argument(help="What `gpufleet ledger export` wrote.")], fleet: FleetOption = None
) -> None:
    """Take an export in: all of it or nothing. Rows that are there already stay as they are."""
    counts = backups.take_in_file(load_only(fleet, _ONE), file)
    STDERR.print(
        f"{sum(counts.values())} rows read: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
    )
