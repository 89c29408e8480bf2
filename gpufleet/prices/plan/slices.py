"""Prices of slices: the share of a machine's price that each slice of a pool's GPUs has."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from gpufleet.domain.slices import MIG_GPUS, plain
from gpufleet.prices.plan.lines import CostLine
from gpufleet.settings.environment import PoolSettings, Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a machine is divided."""

    name: str
    """For people: `1g.10gb`, or `a quarter of a GPU`."""
    slices: int
    """Of the whole machine."""
    share: Fraction
    """Of the machine's price, for each slice."""

    @property
    def stranded(self) -> Fraction:
        """The share of the machine's price that no slice holds."""
        return 1 - self.slices * self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePrice:
    """The price of a slice on one machine type of a pool."""

    pool: str
    machine_type: str
    capacity_type: str
    division: Division
    usd_per_slice_hour: Decimal
    """Rounded to nine decimals."""


def division(slices: Slices, cloud: Cloud, machine_type: str) -> Division | None:
    """How the settings divide a machine; None: its GPUs cannot be divided so, or the catalogue does not know it."""
    try:
        machine = catalogue.machine(cloud, machine_type)
    except catalogue.UnknownMachineError:
        return None
    gpus = machine.gpu_count
    if slices.kind != "mig":
        parts = slices.replicas or 1
        return Division(name=f"1/{parts} of a GPU", slices=gpus * parts, share=Fraction(1, gpus * parts))
    known, name = MIG_GPUS.get(machine.gpu), plain(slices.profile or "")
    if known is None or name is None or name not in known.profiles:
        return None
    size = known.size(name)
    return Division(name=name, slices=gpus * known.profiles[name], share=Fraction(size.compute, size.of * gpus))


def slice_price(
    pool: str, slices: Slices, cloud: Cloud, machine: tuple[str, str], usd_per_hour: Decimal
) -> SlicePrice | None:
    """The price of a slice. `machine`: machine type and capacity type. None: it cannot be divided so."""
    found = division(slices, cloud, machine[0])
    if found is None:
        return None
    usd = usd_per_hour * found.share.numerator / found.share.denominator
    return SlicePrice(
        pool=pool,
        machine_type=machine[0],
        capacity_type=machine[1],
        division=found,
        usd_per_slice_hour=usd.quantize(Decimal("1e-9")),
    )


def slice_prices(pools: Mapping[str, PoolSettings], lines: Iterable[CostLine], cloud: Cloud) -> Iterator[SlicePrice]:
    """The prices of slices of all pools that state them, from the lines of a plan."""
    for line in lines:
        pool = pools.get(line.pool)
        parts = line.sku.split(":")
        if pool is None or pool.slices is None or len(parts) != len(("cloud", "service", "machine", "kind")):
            continue
        found = slice_price(line.pool, pool.slices, cloud, (parts[2], parts[3]), line.price.usd_per_hour)
        if found is not None:
            yield found


def as_text(price: SlicePrice) -> str:
    """One sentence for people."""
    return (
        f"pool {price.pool}, {price.machine_type} ({price.capacity_type}): {price.division.slices} slices of"
        f" {price.division.name}, {price.usd_per_slice_hour.quantize(Decimal('0.0001'))} USD per slice-hour,"
        f" {price.division.stranded} of the price stranded. The machine image must divide the GPUs; the program"
        " starts one engine per instance. Not tried on hardware."
    )
