"""`gpufleet watch idle --region`: judges GPU instances that gpufleet did not create. It never writes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer

from app import unmanaged
from app.unmanaged import SearchScope
from cli import plans
from cli.output import STDOUT, Exit, after_the_work, print_json
from gpufleet.costs import render, slice_use, slice_view
from gpufleet.costs.slice_use import SliceUse
from gpufleet.domain.decisions import Reason

MAX_SLICES: Final = 40
"""Rows of the table by slice."""

RegionOption = Annotated[
    str | None,
    typer.Option(
        "--region",
        help="Check every GPU instance in this region by the watchdog's rules, not those of a fleet. `gpufleet scan`"
        " looks at all regions and accounts.",
    ),
]
ProjectOption = Annotated[
    str | None, typer.Option("--project", help="With --region: the Google Cloud project. Default: AWS.")
]
TagOption = Annotated[
    str | None,
    typer.Option("--tag", metavar="KEY=VALUE", help="With --region: only instances with this tag or label."),
]
PrometheusOption = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="URL",
        help="With --region: the Prometheus with the metrics of the instances, from the jobs engine and accelerator,"
        " with the label instance_id. Default: CloudWatch (AWS).",
    ),
]
WindowOption = Annotated[
    str, typer.Option("--window", help="With --region: time for which an instance must have been idle, as in 30m.")
]


def show_idle(place: SearchScope, now: datetime, *, as_json: bool) -> Exit:
    """Print the judgement of each instance. Raises AppError when the inventory or the metrics are incomplete."""
    found = unmanaged.find(place, now)
    plan = found.plan
    idle = [decision for decision in plan.decisions if decision.reason is Reason.IDLE]
    total, unpriced = plans.total_of(decision.usd_per_hour for decision in idle)
    if as_json:
        raw = [{"code": one.code, "job": one.job, "message": one.sentence} for one in found.raw_metrics]
        units = {"units": slice_use.document(found.slices.uses)}
        slices = {"slices": slice_view.document(found.slices.costs) | units, "unusable_metrics": raw}
        answer = {"region": place.region, "idle": len(idle), "idle_usd_per_hour": str(total), "unpriced": unpriced}
        print_json(
            plans.plan_json(plan, ()) | {"cloud": place.cloud} | answer | slices | {"api_calls": found.api_calls}
        )
    else:
        unknown = f" and {unpriced} of unknown price" if unpriced else ""
        with after_the_work():
            plans.show_plan(plan, f"{place.cloud} {place.region}: {len(plan.decisions)} GPU instances")
            STDOUT.print(f"{len(idle)} idle: {total.normalize():f} USD/h{unknown}", highlight=False)
            show_slices(found.slices.uses)
            for one in found.raw_metrics:
                STDOUT.print(f"! {one.code}: {one.sentence}", highlight=False, markup=False, soft_wrap=True)
    return Exit.FOUND if idle else Exit.DONE


def show_slices(found: Sequence[SliceUse]) -> None:
    """Print the use of each slice, if an instance has slices or shared devices."""
    if not found:
        return
    lines = [slice_use.HEADINGS, *slice_use.rows(found[:MAX_SLICES])]
    more = [f"{len(found) - MAX_SLICES} more: use --json"] if len(found) > MAX_SLICES else []
    for line in ("", render.table(lines, frozenset({0, 1, 2})), *more, *slice_use.notes(found)):
        STDOUT.print(line, highlight=False, markup=False, soft_wrap=True)
