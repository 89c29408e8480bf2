"""Wires the money rooms for the commands: price book, sources of the cost watchdog, Slack."""

import os
import platform
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from sqlalchemy import Engine
from sqlalchemy.engine import make_url

from cli.output import STDERR, UserError
from clouds.aws.calls import AwsCalls
from clouds.aws.lives import AwsLives
from clouds.aws.prices import AwsPrices
from clouds.samples import PrometheusSamples
from costs.collector import FleetFacts, PoolFacts, Sources
from costs.commitments import Block, Declared, Shared, Spend
from costs.report import as_price
from costs.samples import MetricNames, Series
from costs.slots import Measure, Sample
from costs.teams import ENGINE_SECONDS
from fleet.document import FleetDocument
from fleet.document.money import BlockEntry, SpendEntry
from fleet.lives import MarketPrice
from fleet.model import Cloud
from ledger import history
from ledger.facts import PriceObservation
from ledger.operations import fleet_name
from ledger.schema import LedgerError, explained, open_ledger
from notify.deliver import Clock, Delivered, deliver_patiently
from notify.slack import Receiver, SlackSettingsError, from_environment
from prices.book import Override, Price, PriceBook, parse_as_of
from prices.packaged import PackagedPrices
from serving import metrics

DELIVERY_LIMIT: Final = timedelta(seconds=60)

METRIC_NAMES: Final = MetricNames(
    prompt=metrics.PROMPT_TOKENS.name,
    cached=metrics.PROMPT_TOKENS_CACHED.name,
    generation=metrics.GENERATION_TOKENS.name,
    prefill_seconds="vllm:request_prefill_time_seconds_sum",
    decode_seconds="vllm:request_decode_time_seconds_sum",
    process_start="process_start_time_seconds",
    requests=(metrics.REQUESTS_RUNNING.name, metrics.REQUESTS_WAITING.name),
    gpu_active=(metrics.GPU_ACTIVE.name, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    teams=tuple(
        f"gpufleet_router_key_{name}_total"
        for name in ("replica_seconds", "input_tokens", "output_tokens", "unmetered")
    ),
)


def ledger_name(document: FleetDocument) -> str:
    """The fleet's name in the ledger."""
    return fleet_name(document.cloud, document.environment, document.region)


def open_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger. Raises UserError."""
    try:
        return open_ledger(document.ledger_url)
    except LedgerError as error:
        raise UserError(str(error)) from error


@contextmanager
def ledger_errors(document: FleetDocument) -> Generator[None]:
    """A ledger that fails while it is used, in our words. Raises UserError."""
    shown = make_url(document.ledger_url).render_as_string(hide_password=True)
    try:
        with explained(shown):
            yield
    except LedgerError as error:
        raise UserError(str(error)) from error


def overrides_of(document: FleetDocument) -> list[Override]:
    """The prices that the document states. Raises UserError that names a bad date."""
    try:
        return [
            Override(
                sku=entry.sku,
                usd_per_hour=entry.usd_per_hour,
                source=entry.source,
                as_of=parse_as_of(entry.as_of),
                unverified=entry.unverified,
            )
            for entry in document.prices.overrides
        ]
    except ValueError as error:
        raise UserError(f"{document.environment}: prices.overrides: {error}") from error


def declared_of(document: FleetDocument) -> Declared:
    """Shared resources and commitments that the document states. Raises UserError that names a bad date."""
    bought = document.commitments
    try:
        return Declared(
            shared=[
                Shared(name=one.name, sku=one.sku, units=one.units, per_instance=one.per == "instance")
                for one in document.shared
            ],
            weights={pool.name: pool.max for pool in document.pools},
            models={pool.name: pool.model for pool in document.pools},
            split_by_team=frozenset(pool.name for pool in document.pools if pool.team_split == ENGINE_SECONDS),
            owners={pool.name: pool.owner for pool in document.pools},
            blocks=[_block(one) for one in bought.blocks],
            spends=[_spend(one, document.cloud) for one in bought.spends],
        )
    except ValueError as error:
        raise UserError(f"{document.environment}: commitments: {error}") from error


def _block(entry: BlockEntry) -> Block:
    return Block(
        reservation=entry.reservation,
        instances=entry.instances,
        upfront_usd=entry.upfront_usd,
        starts=entry.starts,
        ends=entry.ends,
        source=entry.source,
        as_of=parse_as_of(entry.as_of),
    )


def _spend(entry: SpendEntry, cloud: Cloud) -> Spend:
    return Spend(
        name=entry.name,
        cloud=cloud,
        usd_per_hour=entry.usd_per_hour,
        rates=entry.rates,
        starts=entry.starts,
        ends=entry.ends,
        source=entry.source,
        as_of=parse_as_of(entry.as_of),
    )


def book_of(document: FleetDocument) -> PriceBook:
    """The fleet's price book, with all that its ledger has observed. Raises UserError."""
    return PriceBook(
        region=document.region,
        overrides=overrides_of(document),
        observed=observed_prices(document),
        packaged=PackagedPrices(),
    )


def observed_prices(document: FleetDocument) -> list[Price]:
    """What the fleet's ledger has seen of prices. Raises UserError."""
    with open_ledger_of(document).connect() as connection:
        return [as_price(seen) for seen in history.prices(connection, document.region)]


def observation(price: MarketPrice, now: datetime) -> PriceObservation:
    """A price that a cloud told, as a fact."""
    return PriceObservation(
        sku=price.sku,
        region=price.region,
        zone=price.zone,
        effective_at=price.effective_at,
        source=price.source,
        usd_per_hour=price.usd_per_hour,
        observed_at=now,
    )


class RefreshedMarket(Protocol):
    """A cloud that tells all prices of today."""

    def refresh(self, machine_types: Sequence[str], now: datetime) -> tuple[list[MarketPrice], list[str]]:
        """Prices, and what could not be had."""
        ...


def market_of(document: FleetDocument) -> RefreshedMarket:
    """Where today's prices come from. Makes no call yet."""
    if document.cloud is Cloud.AWS:
        # the Price List service answers in us-east-1 for every region
        return AwsPrices(AwsCalls(document.region), document.region, AwsCalls("us-east-1"))
    from clouds.gcp.prices import GooglePrices

    return GooglePrices(document.region)


class SamplesOf:
    """Raw samples in the words of `costs`."""

    def __init__(self, store: PrometheusSamples) -> None:
        self._store = store

    def samples(self, selector: str, since: datetime, until: datetime) -> Sequence[Series]:
        return [
            Series(labels, list(map(Sample._make, values)))
            for labels, values in self._store.raw(selector, since, until)
        ]


def sources_of(document: FleetDocument) -> Sources:
    """Where the cost watchdog of a fleet looks. Makes no call yet."""
    if document.cloud is Cloud.GCP:
        return _google_sources(document)
    calls = AwsCalls(document.region)
    lives = AwsLives(calls, document.region, document.environment)
    return Sources(
        lives=lives,
        paid=lives,
        market=AwsPrices(calls, document.region),
        samples=SamplesOf(PrometheusSamples(document.prometheus_url)),
        names=METRIC_NAMES,
    )


def _google_sources(document: FleetDocument) -> Sources:
    # large, and read only where there is something of Google's
    from clouds.gcp.calls import GoogleCalls
    from clouds.gcp.lives import GoogleLives, NoMarket

    lives = GoogleLives(GoogleCalls(document.account), document.region, document.environment)
    return Sources(
        lives=lives,
        paid=lives,
        market=NoMarket(),
        samples=SamplesOf(PrometheusSamples(document.prometheus_url)),
        names=METRIC_NAMES,
    )


def facts_of(document: FleetDocument) -> FleetFacts:
    """What the document says that the facts need."""
    groups = [group for pool in document.pools for group in pool.groups]
    return FleetFacts(
        name=ledger_name(document),
        environment=document.environment,
        pools={
            pool.name: PoolFacts(
                model=pool.model,
                owner=pool.owner,
                reservations=tuple(group.reservation for group in pool.groups if group.reservation),
            )
            for pool in document.pools
        },
        machine_types=tuple(sorted({name for group in groups for name in group.machine_types})),
        measure=Measure(),
        host=platform.node() or "unknown",
    )


def receiver(environ: Mapping[str, str] | None = None) -> Receiver:
    """Slack as the environment says. Raises UserError."""
    try:
        return from_environment(os.environ if environ is None else environ)
    except SlackSettingsError as error:
        raise UserError(str(error)) from error


def send(engine: Engine, *, wait: timedelta = DELIVERY_LIMIT) -> Delivered:
    """Deliver what the outbox holds and say what became of it."""
    done = deliver_patiently(engine, receiver(), Clock(), wait)
    said: dict[str, Any] = {"sent": done.sent + done.found, "waiting": done.later, "refused": done.refused}
    STDERR.print("Slack: " + ", ".join(f"{n} {word}" for word, n in said.items() if n or word == "sent"))
    return done
