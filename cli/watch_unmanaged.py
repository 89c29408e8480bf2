"""`gpufleet watch idle --region`: judges GPU instances that gpufleet did not create. It never writes."""

from datetime import datetime
from typing import Annotated

import typer

from app import unmanaged
from app.unmanaged import SearchScope
from cli import plans
from cli.output import STDOUT, Exit, after_the_work, print_json
from gpufleet.domain.decisions import Reason

RegionOption = Annotated[
    str | None, typer.Option("--region", help="Look at every GPU instance of this region instead of a fleet's.")
]
ProjectOption = Annotated[
    str | None, typer.Option("--project", help="With --region: of this Google Cloud project. Without it: of AWS.")
]
TagOption = Annotated[
    str | None, typer.Option("--tag", metavar="KEY=VALUE", help="With --region: only those with this tag or label.")
]
PrometheusOption = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="URL",
        help="With --region: who measures them, by the jobs engine and dcgm and the label instance_id."
        " Without it: CloudWatch (AWS).",
    ),
]
WindowOption = Annotated[str, typer.Option("--window", help="With --region: how long one must have been idle.")]


def look(place: SearchScope, now: datetime, *, as_json: bool) -> Exit:
    """Print the judgement of each instance. Raises AppError when the inventory or the metrics are incomplete."""
    found = unmanaged.find(place, now)
    plan = found.plan
    idle = [decision for decision in plan.decisions if decision.reason is Reason.IDLE]
    total, unpriced = plans.total_of(decision.usd_per_hour for decision in idle)
    if as_json:
        answer = {"region": place.region, "idle": len(idle), "idle_usd_per_hour": str(total), "unpriced": unpriced}
        print_json(plans.plan_json(plan, ()) | {"cloud": place.cloud} | answer | {"api_calls": found.api_calls})
    else:
        unknown = f" and {unpriced} of unknown price" if unpriced else ""
        with after_the_work():
            plans.show_plan(plan, f"{place.cloud} {place.region}: {len(plan.decisions)} GPU instances")
            STDOUT.print(f"{len(idle)} idle: {total.normalize():f} USD/h{unknown}", highlight=False)
    return Exit.FOUND if idle else Exit.DONE
