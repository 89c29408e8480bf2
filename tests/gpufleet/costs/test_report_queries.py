"""A report of a short window queries the ledger by groups of instances, not once for each instance."""

from datetime import timedelta

import pytest
from sqlalchemy import event

from benchmarks import fleet_ledger
from gpufleet.costs.query import CostQuery
from gpufleet.costs.report import Report, ReportScope
from gpufleet.domain.model import Cloud
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.packaged import PackagedPrices

MODELS = 5


def _counted(instances: int, hours: int) -> tuple[Report, int]:
    """The report of the last hours of a generated day, and the number of SQL statements it needs."""
    engine = open_ledger("sqlite://")
    fleet_ledger.write(engine, days=1, instances=instances, models=MODELS)
    until = fleet_ledger.until(1)
    scope = ReportScope(
        fleet=fleet_ledger.FLEET, environment="bench", cloud=Cloud.AWS, region="us-east-1",
        since=until - timedelta(hours=hours), until=until, now=until, allow_unpriced=True,
    )  # fmt: skip
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _k, statement, *_: asked.append(statement))
    try:
        query = CostQuery(engine, scope.fleet, scope.region, packaged=PackagedPrices())
        query.read([(scope.since, scope.until)])
        return query.report(scope), len(asked)
    finally:
        engine.dispose()


@pytest.mark.parametrize("hours", [1, 5])
def test_ten_times_the_instances_need_no_more_queries(hours: int) -> None:
    few, asked_of_few = _counted(30, hours)
    many, asked_of_many = _counted(300, hours)
    assert (len(few.engines), len(many.engines)) == (30, 300)
    assert all(engine.base is not None for engine in many.engines), "differences count from the hour before"
    assert many.total.allocation > few.total.allocation
    assert asked_of_many <= asked_of_few + MODELS
