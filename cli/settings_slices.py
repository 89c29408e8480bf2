"""Prices of the slices that a valid settings file states, for `gpufleet settings check`."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpufleet.domain.model import CapacityType
from gpufleet.prices.book import MissingPriceError
from gpufleet.prices.plan.cost import PlanCostError, Rates
from gpufleet.prices.plan.rates import rates_of
from gpufleet.prices.plan.slices import as_text, slice_price
from gpufleet.settings import file, reading
from gpufleet.settings.environment import PoolSettings, Slices


def notes(path: Path) -> Iterator[str]:
    """One sentence per machine type of each pool with slices, at its on-demand price."""
    config = file.read_config(path)
    pools = [(pool, pool.slices) for pool in reading.parts(config).pools if pool.slices is not None]
    if not pools:
        return
    try:
        rates = rates_of(config, datetime.now(UTC))
    except PlanCostError as error:
        yield f"slices: {error}"
        return
    for pool, slices in pools:
        yield from _notes(pool, slices, rates)


def _notes(pool: PoolSettings, slices: Slices, rates: Rates) -> Iterator[str]:
    kind = CapacityType.ON_DEMAND
    for name in pool.capacity.machine_types:
        try:
            usd = rates.machine(name, kind, None).usd_per_hour
        except MissingPriceError as error:
            yield f"slices of {pool.name}: {error}"
            continue
        found = slice_price(pool.name, slices, rates.cloud, (name, kind.value), usd)
        if found is not None:
            yield as_text(found)
