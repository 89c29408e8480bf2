"""The money part of the fleet document: budgets, prices, shared resources, commitments."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, field_validator, model_validator

from gpufleet.settings.document.fields import ExactDecimal, Strict
from gpufleet.settings.expected import text_form


class Unpriced(StrEnum):
    """How instances without a known price affect the limit `stop_growth_at_usd_per_hour`."""

    WARN = "warn"
    """The sum is a lower bound, and operators are notified."""
    STOP = "stop"
    """The fleet does not grow until the price is known."""


class Budget(Strict):
    """The budget of the environment in USD per month. `usd_per_hour_at_max` is the highest allowed cost in USD per
    hour when all pools are at their maximum."""

    usd_per_month: ExactDecimal
    usd_per_hour_at_max: ExactDecimal
    stop_growth_at_usd_per_hour: ExactDecimal | None = None
    """The spot watchdog requests no instance with which all pools together would cost more, at list prices. Null: no
    limit."""
    unpriced: Unpriced = Unpriced.WARN


class PartBudget(Strict):
    """The budget of one pool or one team in USD per month. `thresholds` are shares of it, 0.5 for 50 %."""

    pool: str | None = None
    team: str | None = None
    usd_per_month: ExactDecimal
    thresholds: tuple[ExactDecimal, ...] = (Decimal("0.5"), Decimal("0.8"), Decimal(1))
    """Shares of the budget at which a notification is sent."""

    @property
    def of(self) -> tuple[str, str]:
        """The kind (`pool` or `team`) and its name."""
        return ("pool", self.pool) if self.pool is not None else ("team", self.team or "")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.pool is None) == (self.team is None):
            raise ValueError("name a pool or a team, and not both")
        return self


class PriceOverride(Strict):
    """A price in USD per hour that replaces the price book's for one SKU, with its source and date."""

    sku: str
    usd_per_hour: ExactDecimal
    source: str
    as_of: str
    unverified: bool = False


class PriceSettings(Strict):
    overrides: tuple[PriceOverride, ...] = ()


class Carbon(Strict):
    """The grid factor of the environment's region: grams of CO2e per kWh, with its source and its year. CO2e of the
    accelerators' energy in reports is computed with it. Absent: CO2e is unknown, because there is no default."""

    grams_per_kwh: Annotated[ExactDecimal, Field(le=3_000)]
    """At most 3,000: more than any grid, so a larger number has another unit."""
    source: Annotated[str, Field(max_length=200)]
    pue: Annotated[ExactDecimal, Field(ge=1, le=5)] | None = None
    """Energy of the whole facility divided by the energy of its machines. It multiplies CO2e, not energy. Absent: not
    applied."""

    @field_validator("source")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty; write the list and the year that state the factor")
        return value


class SharedEntry(Strict):
    """A resource other than GPU instances that costs money by the hour, such as NAT, disks or the control host."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    sku: Annotated[str, text_form(r"^(aws|gcp):.+", "a sku such as aws:ec2:g6e.xlarge:spot")]
    units: ExactDecimal
    per: Literal["environment", "instance"] = "environment"
    """`environment`: split over the pools in proportion to `max`; `instance`: charged for each GPU instance."""


class _Term(Strict):
    starts: AwareDatetime
    ends: AwareDatetime
    source: str
    as_of: str

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.starts >= self.ends:
            raise ValueError(f"ends {self.ends} is not after starts {self.starts}")
        return self


class BlockEntry(_Term):
    """A purchased Capacity Block: its fee in USD is paid at once and spread over its period."""

    reservation: str
    instances: Annotated[int, Field(ge=1)]
    upfront_usd: ExactDecimal


class SpendEntry(_Term):
    """A Savings Plan or committed use discount: the committed USD per hour, due whether used or not, and the rates
    in USD per hour at which instances use it."""

    name: str
    usd_per_hour: ExactDecimal
    rates: Annotated[dict[str, ExactDecimal], Field(min_length=1)]
    """Machine type -> committed rate."""

    @model_validator(mode="after")
    def _rates_cost(self) -> Self:
        if free := sorted(name for name, rate in self.rates.items() if not rate):
            raise ValueError(f"rates of 0 for {', '.join(free)}")
        return self


class Commitments(Strict):
    """The purchased commitments of the environment: Capacity Blocks, and Savings Plans or committed use discounts."""

    blocks: tuple[BlockEntry, ...] = ()
    spends: tuple[SpendEntry, ...] = ()
