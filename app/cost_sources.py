"""The data sources of a fleet's cost watchdog: its cloud, the cloud's prices, and samples of its engines and GPUs."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Protocol

from app import api_calls
from app.ledgers import ledger_name
from app.price_inputs import declared_of, gpu_active_below
from app.unit_names import UNIT_NAMES
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.clouds.aws.prices import AwsPrices
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs.collector import (
    CloudPrices,
    CollectorSources,
    FleetFacts,
    HistorySource,
    PaidCapacitySource,
    PoolFacts,
)
from gpufleet.costs.energy_samples import EnergyNames
from gpufleet.costs.samples import MetricNames, RawSeries
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.domain.model import Cloud
from gpufleet.domain.prices import Price
from gpufleet.settings.document import FleetDocument
from serving import metrics
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.accelerators import energy as accelerator_energy
from serving.accelerators import metrics as accelerator_metrics
from serving.accelerators.contract import FACTORS
from serving.accelerators.evidence import LARGEST_STEP
from serving.accelerators.queries import DEVICE_LABEL, DOUBT_LABEL, IDENTITY_LABELS, KIND_LABEL, UNIT_LABEL, VETO
from serving.engines import CONTRACTS
from serving.engines.reading import ADDED_LABELS, EVIDENCE, NO_EVIDENCE

METRIC_NAMES: Final = MetricNames(
    prompt=metrics.PROMPT_TOKENS.name,
    cached=metrics.PROMPT_TOKENS_CACHED.name,
    generation=metrics.GENERATION_TOKENS.name,
    prefill_seconds=f"{metrics.PREFILL_TIME}_sum",
    decode_seconds=f"{metrics.DECODE_TIME}_sum",
    process_start=metrics.PROCESS_STARTED,
    engine_start=metrics.NODE_ENGINE_STARTED.name,
    requests=(metrics.REQUESTS_RUNNING.name, metrics.REQUESTS_WAITING.name),
    gate_requests=(metrics.NODE_ENGINE_REQUESTS.name,),
    no_evidence=(EVIDENCE, NO_EVIDENCE),
    gpu_active=(accelerator_metrics.ACTIVE.name,),
    gpu_scales=(
        UNIT_LABEL,
        {unit.value: factor for unit, (of, factor) in FACTORS.items() if of == accelerator_metrics.SHARE},
    ),
    gpu_coarse=(EVIDENCE, VETO),
    gpu_doubt=DOUBT_LABEL,
    gpu_kept=(
        KIND_LABEL,
        frozenset(
            kind
            for kind, contract in ACCELERATORS.items()
            if any(series.kept_at_rest for series in contract.carriers(accelerator_metrics.ACTIVE))
        ),
    ),
    gpu_executions=(accelerator_metrics.EXECUTIONS.name,),
    gpu_units=IDENTITY_LABELS,
    router_job=metrics.ROUTER_JOB,
    model_labels=tuple(dict.fromkeys(contract.labels.model for contract in CONTRACTS.values())),
    engine_labels=tuple(dict.fromkeys(contract.labels.engine for contract in CONTRACTS.values())),
    part_labels=(*ADDED_LABELS, *sorted({name for contract in CONTRACTS.values() for name in contract.labels.parts})),
    teams=tuple(
        f"gpufleet_router_key_{name}_total"
        for name in ("replica_seconds", "input_tokens", "output_tokens", "unmetered")
    ),
)

ENERGY_NAMES: Final = EnergyNames(
    counter=accelerator_metrics.ENERGY.name,
    power=accelerator_metrics.POWER.name,
    device=DEVICE_LABEL,
    copies=accelerator_energy.copy_labels(ACCELERATORS),
    millijoules=partial(accelerator_energy.millijoules, ACCELERATORS),
    watts=partial(accelerator_energy.watts, ACCELERATORS),
    largest_step=LARGEST_STEP,
)


class RefreshedPrices(Protocol):
    """A cloud that provides all current prices."""

    def refresh(self, machine_types: Sequence[str], now: datetime) -> tuple[list[Price], list[str]]:
        """The prices, and error messages for those that are unavailable."""
        ...


def market_of(document: FleetDocument) -> RefreshedPrices:
    """The source of current prices. Makes no call yet."""
    match document.cloud:
        case Cloud.AWS:
            # the Price List service is in us-east-1 for every region
            return AwsPrices(AwsCalls(document.region), document.region, AwsCalls("us-east-1"))
        case Cloud.GCP:
            from gpufleet.clouds.gcp.prices import GooglePrices

            return GooglePrices(document.region)


class PrometheusSampleSource:
    """Converts raw samples of Prometheus to the types of `costs`."""

    def __init__(self, store: PrometheusSamples) -> None:
        self._store = store

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[RawSeries]:
        return [
            RawSeries(labels, list(map(ActivitySample._make, values)))
            for labels, values in self._store.raw(selector, since, until)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSources:
    """The data sources of a fleet's cost watchdog, with the counts of their API calls."""

    sources: CollectorSources
    calls: api_calls.Calls
    store: PrometheusSamples

    def api_calls(self) -> dict[str, int]:
        """Calls by operation so far."""
        return api_calls.by_operation(self.calls, self.store)


def sources_of(document: FleetDocument) -> CostSources:
    """Create the sources. Makes no call yet."""
    calls, history, market = _history_and_prices(document)
    store = PrometheusSamples(document.prometheus_url)
    return CostSources(
        sources=CollectorSources(
            history=history,
            paid=history,
            market=market,
            samples=PrometheusSampleSource(store),
            names=METRIC_NAMES,
            energy=ENERGY_NAMES,
            units=UNIT_NAMES,
        ),
        calls=calls,
        store=store,
    )


class HistoryAndPaidCapacity(HistorySource, PaidCapacitySource, Protocol):
    """A source of both: instance history and paid capacity."""


def _history_and_prices(document: FleetDocument) -> tuple[api_calls.Calls, HistoryAndPaidCapacity, CloudPrices]:
    groups = document.owned_groups()
    match document.cloud:
        case Cloud.AWS:
            calls = AwsCalls(document.region)
            history = AwsInstanceHistory(calls, document.region, document.environment, groups)
            return calls, history, AwsPrices(calls, document.region)
        case Cloud.GCP:
            # these imports are large, so they run only for a fleet on Google Cloud
            from gpufleet.clouds.gcp.calls import GoogleCalls
            from gpufleet.clouds.gcp.instance_history import GoogleInstanceHistory, NoPriceSource

            google = GoogleCalls(document.account)
            return (
                google,
                GoogleInstanceHistory(google, document.region, document.environment, groups),
                NoPriceSource(),
            )


def facts_of(document: FleetDocument) -> FleetFacts:
    """The parts of the document that the facts need. Raises AppError that names a bad date."""
    groups = [group for pool in document.pools for group in pool.groups]
    return FleetFacts(
        name=ledger_name(document),
        environment=document.environment,
        pools={
            pool.name: PoolFacts(
                model=pool.model,
                owner=pool.owner,
                reservations={group.reservation: group.max for group in pool.groups if group.reservation},
                gpu_active_below=gpu_active_below(pool),
            )
            for pool in document.pools
        },
        machine_types=tuple(sorted({name for group in groups for name in group.machine_types})),
        measure=Measure(),
        account=document.account,
        declared=declared_of(document),
        host=platform.node() or "unknown",
    )
