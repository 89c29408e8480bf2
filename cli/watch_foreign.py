"""`gpufleet watch idle --region`: judges GPU instances that this product did not make. It reads and never writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import typer

from app import api_calls
from app.adapters import FleetPrices, FleetUtilization
from app.errors import AppError, Code
from cli import plans
from cli.output import STDOUT, Exit, after_the_work, print_json
from cli.watch_orphans import with_tag
from clouds.aws.calls import AwsCalls
from clouds.aws.cloudwatch import CloudWatch
from clouds.aws.inventory import AwsInventory
from clouds.prometheus import Prometheus
from gpufleet.domain import durations
from gpufleet.domain.decisions import Budget, Plan, Reason
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Cloud, Instance
from gpufleet.domain.policies import OrphanPolicy
from prices.book import PriceBook
from prices.packaged import PackagedPrices
from watchdogs import signals
from watchdogs.machines import known_of
from watchdogs.orphans.decide import look as judged
from watchdogs.orphans.view import Observed
from watchdogs.orphans.watchdog import AT_ONCE, of_instances

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to look, and whom to ask."""

    region: str
    project: str | None = None
    tag: str | None = None
    prometheus: str | None = None
    window: str = "30m"

    @property
    def cloud(self) -> Cloud:
        return Cloud.AWS if self.project is None else Cloud.GCP


def look(place: Place, now: datetime, *, as_json: bool) -> Exit:
    """Print what each is found to be. Raises AppError when the inventory or the metrics could not be had whole."""
    window = _window(place.window)
    store = None if place.prometheus is None else Prometheus(place.prometheus)
    try:
        calls, instances = _instances(place)
        alive = [instance for instance in instances if instance.alive]
        evidence = _evidence(calls, store, [instance.id for instance in alive], window, now)
    except OSError as error:
        raise AppError(f"{place.cloud} {place.region}: {error}") from error
    finally:
        if store is not None:
            store.close()
    plan = _judged(place, alive, evidence, window, now)
    idle = [decision for decision in plan.decisions if decision.reason is Reason.IDLE]
    total, unpriced = plans.total_of(decision.usd_per_hour for decision in idle)
    if as_json:
        answer = {"region": place.region, "idle": len(idle), "idle_usd_per_hour": str(total), "unpriced": unpriced}
        made = api_calls.by_operation(calls, store)
        print_json(plans.plan_json(plan, ()) | {"cloud": place.cloud} | answer | {"api_calls": made})
    else:
        unknown = f" and {unpriced} of unknown price" if unpriced else ""
        with after_the_work():
            plans.show_plan(plan, f"{place.cloud} {place.region}: {len(plan.decisions)} GPU instances")
            STDOUT.print(f"{len(idle)} idle: {total.normalize():f} USD/h{unknown}", highlight=False)
    return Exit.FOUND if idle else Exit.DONE


def _instances(place: Place) -> tuple[api_calls.Calls, Sequence[Instance]]:
    if place.project is not None:
        from clouds.gcp.calls import GoogleCalls
        from clouds.gcp.inventory import GoogleInventory

        if place.prometheus is None:
            raise AppError("Google Cloud has no CloudWatch: name who measures with --prometheus URL", Code.WRONG_USE)
        calls = GoogleCalls(place.project)
        found = GoogleInventory(calls, place.region, "").gpus()
    else:
        calls = AwsCalls(place.region)
        found = AwsInventory(calls, place.region, "").gpus()
    return calls, found if place.tag is None else list(filter(with_tag(place.tag), found))


def _evidence(
    calls: api_calls.Calls, store: Prometheus | None, ids: Sequence[str], window: timedelta, now: datetime
) -> Mapping[str, Evidence]:
    """From the store; without one from CloudWatch, which AWS has."""
    if store is None and isinstance(calls, AwsCalls) and ids:
        return FleetUtilization(CloudWatch(calls)).gather(ids, window, now)
    found: dict[str, Evidence] = {}
    if store is not None:
        for start in range(0, len(ids), AT_ONCE):
            series = signals.Series(labels=of_instances(ids[start : start + AT_ONCE]))
            found |= signals.gather(store, series, window, now)
    return found


def _judged(
    place: Place,
    instances: Sequence[Instance],
    evidence: Mapping[str, Evidence],
    window: timedelta,
    now: datetime,
) -> Plan:
    book = PriceBook(region=place.region, overrides=(), observed=(), packaged=PackagedPrices())
    prices = FleetPrices(book, place.cloud, place.region, now)
    found = {instance.id: prices.usd_per_hour(instance) for instance in instances}
    known = known_of(place.cloud, instances)
    seen = Observed(
        environment="",
        orphans=instances,
        rules=(),
        evidence=evidence,
        budget=Budget(per_run=0, per_hour=0),
        gpus_expected=known.gpus_expected,
        watts_rated=known.watts_rated,
        usd_per_hour={key: usd for key, usd in found.items() if usd is not None},
    )
    return judged(seen, OrphanPolicy(name="look", window=window, min_age=window), now)


def _window(text: str) -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(f"--window: {error}", Code.WRONG_USE) from error
