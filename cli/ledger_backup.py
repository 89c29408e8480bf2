"""`gpufleet ledger backup|restore`: backs up the ledger to a bucket, and restores it on another machine."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from app import backups
from app.fleets import load
from cli.options import FleetOption
from cli.output import STDERR, Exit

PlaceOption = Annotated[
    str,
    typer.Option(
        "--place",
        help="Folder, or bucket with prefix, of the backups. Default: backups/ledger in the fleet's bucket.",
    ),
]


def register(ledger: typer.Typer) -> None:
    """Add both to `gpufleet ledger`."""
    ledger.command("backup")(backup)
    ledger.command("restore")(restore)


def backup(fleet: FleetOption = None, place: PlaceOption = "") -> None:
    """Back up the whole ledger to a bucket. The pointer to the newest backup changes last, when all is written."""
    for document in load(fleet):
        done = backups.backup(document, place, datetime.now(UTC))
        STDERR.print(f"{done.key}: {done.bytes:,} bytes, sha256 {done.sha256}", highlight=False)


def restore(fleet: FleetOption = None, place: PlaceOption = "") -> None:
    """Restore the newest backup in one transaction: all rows or none. Rows that exist already are not changed.

    The command then verifies the ledger. Exit code 3: its facts are not consistent.
    """
    for document in load(fleet):
        done = backups.restore(document, place)
        STDERR.print(f"{done.key} of {done.at}: {done.rows} rows read", highlight=False)
        if done.breaches:
            STDERR.print(f"{done.breaches} violations: `gpufleet ledger verify` lists them", highlight=False)
            raise typer.Exit(Exit.FOUND)
