"""The inputs of price calculations: a fleet's price book, and the shared and prepaid costs in its document."""

from app.errors import AppError
from app.ledgers import ledger_errors, read_ledger_of
from gpufleet.costs.commitments import BlockCommitment, DeclaredCosts, SharedCost, SpendCommitment
from gpufleet.costs.teams import ENGINE_SECONDS
from gpufleet.domain.energy import GridFactor
from gpufleet.domain.model import Cloud
from gpufleet.domain.policies import IdlePolicy
from gpufleet.domain.prices import Price
from gpufleet.ledger import history
from gpufleet.prices.book import PriceBook, parse_as_of, stated_price
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.settings.document import FleetDocument, Pool
from gpufleet.settings.document.money import BlockEntry, Carbon, SpendEntry


def overrides_of(document: FleetDocument) -> list[Price]:
    """The prices in the document. Raises AppError that names a bad date."""
    try:
        return [stated_price(entry, document.region) for entry in document.prices.overrides]
    except ValueError as error:
        raise AppError(f"{document.environment}: prices.overrides: {error}") from error


def declared_of(document: FleetDocument) -> DeclaredCosts:
    """Shared resources, prices and commitments in the document. Raises AppError that names a bad date."""
    bought = document.commitments
    try:
        return DeclaredCosts(
            shared=[
                SharedCost(name=one.name, sku=one.sku, units=one.units, per_instance=one.per == "instance")
                for one in document.shared
            ],
            weights={pool.name: pool.max for pool in document.pools},
            models={pool.name: pool.model for pool in document.pools},
            engines={pool.name: pool.engine for pool in document.pools},
            sources={pool.model: pool.model_source for pool in document.pools if pool.model_source},
            split_by_team=frozenset(pool.name for pool in document.pools if pool.team_split == ENGINE_SECONDS),
            adapters={pool.name: sorted(pool.adapters) for pool in document.pools if pool.adapters},
            owners={pool.name: pool.owner for pool in document.pools},
            blocks=[_block(one) for one in bought.blocks],
            spends=[_spend(one, document.cloud) for one in bought.spends],
            prices=overrides_of(document),
            carbon=None if document.carbon is None else _grid_factor(document.carbon),
            gpu_active_below={pool.name: gpu_active_below(pool) for pool in document.pools},
        )
    except ValueError as error:
        raise AppError(f"{document.environment}: commitments: {error}") from error


def _grid_factor(entry: Carbon) -> GridFactor:
    return GridFactor(grams_per_kwh=entry.grams_per_kwh, source=entry.source, pue=entry.pue)


def gpu_active_below(pool: Pool) -> float:
    """The pool's noise floor of GPU activity. Its idle watchdog and the reports use the same one."""
    return (pool.watchdogs.idle or IdlePolicy()).gpu_active_below


def _block(entry: BlockEntry) -> BlockCommitment:
    return BlockCommitment(
        reservation=entry.reservation,
        instances=entry.instances,
        upfront_usd=entry.upfront_usd,
        starts=entry.starts,
        ends=entry.ends,
        source=entry.source,
        as_of=parse_as_of(entry.as_of),
    )


def _spend(entry: SpendEntry, cloud: Cloud) -> SpendCommitment:
    return SpendCommitment(
        name=entry.name,
        cloud=cloud,
        usd_per_hour=entry.usd_per_hour,
        rates=entry.rates,
        starts=entry.starts,
        ends=entry.ends,
        source=entry.source,
        as_of=parse_as_of(entry.as_of),
    )


def book_of(document: FleetDocument, unreadable: list[str] | None = None) -> PriceBook:
    """The fleet's price book, with all prices observed in its ledger. Raises AppError.

    Each row of the ledger without a valid price is appended to `unreadable`.
    """
    return PriceBook(
        region=document.region,
        overrides=overrides_of(document),
        observed=observed_prices(document, unreadable),
        packaged=PackagedPrices(),
    )


def observed_prices(document: FleetDocument, unreadable: list[str] | None = None) -> list[Price]:
    """Prices observed in the fleet's ledger. Raises AppError."""
    with ledger_errors(document), read_ledger_of(document).connect() as connection:
        return history.prices(connection, document.region, unreadable=unreadable)
