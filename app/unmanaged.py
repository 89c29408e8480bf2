"""Judges unmanaged GPU instances by the metrics of their cloud or of a store. It writes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from app import api_calls, unmanaged_slices
from app.adapters import FleetPrices, FleetUtilization
from app.errors import AppError, ErrorCode
from app.unmanaged_slices import UnmanagedSlices
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.cloudwatch import CloudWatch
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs.slice_use import SliceUse
from gpufleet.domain import durations
from gpufleet.domain.decisions import ChangeBudget, Plan
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Cloud, Instance, InstanceList
from gpufleet.domain.policies import OrphanPolicy
from gpufleet.prices.book import PriceBook
from gpufleet.prices.packaged import PackagedPrices
from watchdogs import raw_metrics, signals
from watchdogs.machines import machine_facts
from watchdogs.orphans.decide import inspect
from watchdogs.orphans.view import OrphanObservation
from watchdogs.orphans.watchdog import AT_ONCE, of_instances
from watchdogs.promql import SeriesSelector
from watchdogs.raw_metrics import RawMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """Where to search, and which metrics store to ask."""

    region: str
    project: str | None = None
    tag: str | None = None
    prometheus: str | None = None
    window: str = "30m"

    @property
    def cloud(self) -> Cloud:
        return Cloud.AWS if self.project is None else Cloud.GCP


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedInstances:
    """The judgement of each instance, and the API calls that it needed."""

    plan: Plan
    api_calls: dict[str, int]
    slices: UnmanagedSlices = field(default_factory=UnmanagedSlices)
    """Cost and use by slice over the window; empty without a metrics store."""
    raw_metrics: Sequence[RawMetrics] = ()
    """Metrics of the store that prove nothing."""


def find(place: SearchScope, now: datetime) -> UnmanagedInstances:
    """Judge the GPU instances there. Raises AppError when the inventory or the metrics are incomplete."""
    window = _window(place.window)
    store = None if place.prometheus is None else PrometheusSamples(place.prometheus)
    raw: Sequence[RawMetrics] = ()
    try:
        calls, listed = _instances(place)
        chosen = listed.instances if place.tag is None else filter(with_tag(place.tag), listed.instances)
        alive = [instance for instance in chosen if instance.alive]
        ids = [instance.id for instance in alive]
        raw = [] if store is None else raw_metrics.find(store, now)
        evidence = _evidence(calls, store, ids, window, now)
        series = [] if store is None else unmanaged_slices.read(store, ids, window, now)
    except OSError as error:
        advice = "".join(f"; {one.sentence}" for one in raw)
        raise AppError(f"{place.cloud} {place.region}: {error}{advice}") from error
    finally:
        if store is not None:
            store.close()
    seen = InstanceList(instances=alive, errors=listed.errors)
    usd = _usd_per_hour(place, alive, now)
    return UnmanagedInstances(
        plan=_judged(place, seen, evidence, usd, window, now),
        api_calls=api_calls.by_operation(calls, store),
        slices=unmanaged_slices.find(alive, series, usd, window, now),
        raw_metrics=raw,
    )


def slices_of(prometheus: str, seen: OrphanObservation, window: timedelta, now: datetime) -> Sequence[SliceUse]:
    """The use of each slice of the instances that the orphan watchdog observed. Raises OSError."""
    store = PrometheusSamples(prometheus)
    try:
        series = unmanaged_slices.read(store, [one.id for one in seen.orphans], window, now)
    finally:
        store.close()
    return unmanaged_slices.find(seen.orphans, series, seen.usd_per_hour, window, now).uses


def _instances(place: SearchScope) -> tuple[api_calls.Calls, InstanceList]:
    if place.project is not None:
        from gpufleet.clouds.gcp.calls import GoogleCalls
        from gpufleet.clouds.gcp.inventory import GoogleInventory

        if place.prometheus is None:
            raise AppError(
                "Google Cloud has no CloudWatch: set a metrics store with --prometheus URL", ErrorCode.WRONG_USE
            )
        calls = GoogleCalls(place.project)
        found = GoogleInventory(calls, place.region, "").gpus()
    else:
        calls = AwsCalls(place.region)
        found = AwsInventory(calls, place.region, "").gpus()
    return calls, found


def _evidence(
    calls: api_calls.Calls, store: PrometheusSamples | None, ids: Sequence[str], window: timedelta, now: datetime
) -> Mapping[str, Evidence]:
    """The evidence from the store; without a store from CloudWatch, which only AWS has."""
    if store is None and isinstance(calls, AwsCalls) and ids:
        return FleetUtilization(CloudWatch(calls)).gather(ids, window, now)
    found: dict[str, Evidence] = {}
    if store is not None:
        for start in range(0, len(ids), AT_ONCE):
            series = SeriesSelector(labels=of_instances(ids[start : start + AT_ONCE]))
            found |= signals.gather(store, series, window, now)
    return found


def _usd_per_hour(place: SearchScope, instances: Sequence[Instance], now: datetime) -> dict[str, Decimal]:
    """The price of each instance; absent: unknown."""
    book = PriceBook(region=place.region, overrides=(), observed=(), packaged=PackagedPrices())
    prices = FleetPrices(book, place.cloud, place.region, now)
    found = {instance.id: prices.usd_per_hour(instance) for instance in instances}
    return {key: usd for key, usd in found.items() if usd is not None}


def _judged(  # noqa: PLR0913 - what an observation holds
    place: SearchScope,
    listed: InstanceList,
    evidence: Mapping[str, Evidence],
    usd: Mapping[str, Decimal],
    window: timedelta,
    now: datetime,
) -> Plan:
    known = machine_facts(place.cloud, listed.instances)
    seen = OrphanObservation(
        environment="",
        orphans=listed.instances,
        unreadable=listed.errors,
        rules=(),
        evidence=evidence,
        budget=ChangeBudget(per_run=0, per_hour=0),
        gpus_expected=known.gpus_expected,
        watts_rated=known.watts_rated,
        usd_per_hour=usd,
    )
    return inspect(seen, OrphanPolicy(name="look", window=window, min_age=window), now)


def _window(text: str) -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(f"--window: {error}", ErrorCode.WRONG_USE) from error


def with_tag(text: str) -> Callable[[Instance], bool]:
    """A filter from `KEY=VALUE`. Raises AppError."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise AppError(f"--tag {text!r}: write it as KEY=VALUE", ErrorCode.WRONG_USE)
    return lambda instance: instance.tags.get(key) == value
