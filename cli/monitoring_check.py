"""`gpufleet monitoring check`: which queries of the dashboards find data in a fleet's Prometheus now."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from app.errors import AppError
from app.fleets import load
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, Exit, print_json
from clouds.prometheus import Prometheus
from gpufleet.domain.activity import CloudError
from gpufleet.settings.document import FleetDocument
from monitoring.dashboards import BUDGET, HOST_NAMES, dashboards, of_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query of one panel."""

    fleet: str
    dashboard: str
    panel: str
    query: str
    """As it was asked: of every pool and instance."""
    series: int


def check(
    fleet: FleetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")] = False,
) -> None:
    """Ask Prometheus every query of the dashboards, over all pools and instances. Exit code 3: some find nothing."""
    found: list[Asked] = []
    for document in load(fleet):
        prometheus = Prometheus(document.prometheus_url)
        try:
            found += ask(prometheus, document, datetime.now(UTC))
        except CloudError as error:
            raise AppError(str(error)) from error
        finally:
            prometheus.close()
    empty = [one for one in found if not one.series]
    if as_json:
        print_json([asdict(one) for one in found])
    elif empty:
        STDOUT.print(_table(empty))
    STDERR.print(f"{len(found) - len(empty)} of {len(found)} queries find data", highlight=False)
    if empty:
        raise typer.Exit(Exit.FOUND)


def ask(prometheus: Prometheus, document: FleetDocument, at: datetime) -> Sequence[Asked]:
    """Every query that has something to find in that fleet. Raises CloudError."""
    found: list[Asked] = []
    absent = (*(() if document.budget else (BUDGET,)), *(() if document.node_exporter else HOST_NAMES))
    for board in dashboards():
        for panel in board.panels:
            for query in panel.queries:
                if any(name in query.expression for name in absent):
                    continue
                expression = of_all(query.expression, document.environment)
                counted = prometheus.query(f"count({expression})", at)
                series = int(counted[0][1]) if counted else 0
                found.append(
                    Asked(
                        fleet=document.environment,
                        dashboard=board.title,
                        panel=panel.title,
                        query=expression,
                        series=series,
                    )
                )
    return found


def _table(empty: Sequence[Asked]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("fleet", "dashboard", "panel", "finds nothing"):
        table.add_column(name, overflow="fold")
    for one in empty:
        table.add_row(one.fleet, one.dashboard, one.panel, Text(one.query))
    return table
