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

_MAX_ROWS = 50
_ONE = "give one --fleet: an export contains one ledger"


def register(app: typer.Typer) -> None:
    ledger = typer.Typer(
        help="The ledger, a fleet's database of facts, decisions and messages: verify, export, back up.",
        no_args_is_help=True,
    )
    ledger.command("verify")(verify)
    ledger.command("export")(export)
    ledger.command("import")(import_)
    ledger_backup.register(ledger)
    app.add_typer(ledger, name="ledger")


def verify(fleet: FleetOption = None, as_json: JsonOption = False) -> None:
    """Check that the facts in the ledger are consistent. Exit code 3: they are not."""
    found: list[Breach] = []
    for document in load(fleet):
        found += backups.breaches(document)
    if as_json:
        print_json(
            {"sound": not found, "breaches": [{"rule": b.rule, "where": b.where, "found": b.found} for b in found]}
        )
    else:
        for one in found[:_MAX_ROWS]:
            write(f"violated: {one.rule}: {one.where}: {one.found}\n")
        more = f", {len(found) - _MAX_ROWS} not shown" if len(found) > _MAX_ROWS else ""
        write(f"{len(found)} violations{more}\n" if found else "the ledger is consistent\n")
    if found:
        raise typer.Exit(Exit.FOUND)


def export(
    fleet: FleetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write. Default: stdout.")] = None,
) -> None:
    """Write the whole ledger as JSON Lines."""
    write_lines(backups.export(load_only(fleet, _ONE), datetime.now(UTC)), out)


def import_(
    file: Annotated[Path, typer.Argument(help="A file that `gpufleet ledger export` wrote.")],
    fleet: FleetOption = None,
) -> None:
    """Import an exported ledger in one transaction: all rows or none. Rows that exist already are not changed."""
    counts = backups.import_file(load_only(fleet, _ONE), file)
    STDERR.print(
        f"{sum(counts.values())} rows read: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
    )
