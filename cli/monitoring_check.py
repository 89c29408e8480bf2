"""`gpufleet monitoring check`: reports which queries of the dashboards find data in a fleet's Prometheus now."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import typer
from rich.table import Table
from rich.text import Text

from app.fleets import load
from app.monitoring import PanelQuery, ask_all
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json


def check(
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run every query of the dashboards in a fleet's Prometheus. Exit code 3: at least one query finds no data."""
    found: list[PanelQuery] = []
    for document in load(fleet):
        found += ask_all(document, datetime.now(UTC))
    empty = [one for one in found if not one.series]
    if as_json:
        print_json([asdict(one) for one in found])
    elif empty:
        STDOUT.print(_table(empty))
    STDERR.print(f"{len(found) - len(empty)} of {len(found)} queries find data", highlight=False)
    if empty:
        raise typer.Exit(Exit.FOUND)


def _table(empty: Sequence[PanelQuery]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("fleet", "dashboard", "panel", "query without data"):
        table.add_column(name, overflow="fold")
    for one in empty:
        table.add_row(one.fleet, one.dashboard, one.panel, Text(one.query))
    return table
