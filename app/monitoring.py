"""Runs the queries of the dashboards against a fleet's Prometheus."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.errors import AppError
from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.activity import CloudError
from gpufleet.settings.document import FleetDocument
from hosts.monitoring.dashboards import BUDGET, HOST_NAMES, dashboards, of_all


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One query of one panel."""

    fleet: str
    dashboard: str
    panel: str
    query: str
    """The query as it was sent: for all pools and instances."""
    series: int


def ask_all(document: FleetDocument, at: datetime) -> Sequence[PanelQuery]:
    """Run every query that applies to that fleet on its Prometheus. Raises AppError."""
    prometheus = Prometheus(document.prometheus_url)
    try:
        return ask(prometheus, document, at)
    except CloudError as error:
        raise AppError(str(error)) from error
    finally:
        prometheus.close()


def ask(prometheus: Prometheus, document: FleetDocument, at: datetime) -> Sequence[PanelQuery]:
    """Run every query that applies to that fleet. Raises CloudError."""
    found: list[PanelQuery] = []
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
                    PanelQuery(
                        fleet=document.environment,
                        dashboard=board.title,
                        panel=panel.title,
                        query=expression,
                        series=series,
                    )
                )
    return found
