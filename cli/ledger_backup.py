"""`gpufleet ledger backup|restore`: backs up the ledger to a bucket, and restores it on another machine."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from app import backups
from app.fleets import load
from cli.options import FleetOption
from cli.output import STDERR, Exit

PlaceOption = Annotated[
    str, typer.Option("--place", help="Folder or bucket prefix. Default: backups/ledger in the fleet's bucket.")
]


def register(ledger: typer.Typer) -> None:
    """Add both to `gpufleet ledger`."""
    ledger.command("backup")(backup)
    ledger.command("restore")(restore)


def backup(fleet: FleetOption = None, place: PlaceOption = "") -> None:
    """Write the whole ledger into a bucket. The pointer to the newest one moves last."""
    for document in load(fleet):
        done = backups.backup(document, place, datetime.now(UTC))
        STDERR.print(f"{done.key}: {done.bytes:,} bytes, sha256 {done.sha256}", highlight=False)


def restore(fleet: FleetOption = None, place: PlaceOption = "") -> None:
    """Take the newest backup in: all of it or nothing, and prove what is there then. Rows there already stay."""
    for document in load(fleet):
        done = backups.restore(document, place)
        STDERR.print(f"{done.key} of {done.at}: {done.rows} rows read", highlight=False)
        if done.breaches:
            STDERR.print(f"{done.breaches} breaches: `gpufleet ledger verify` names them", highlight=False)
            raise typer.Exit(Exit.FOUND)
