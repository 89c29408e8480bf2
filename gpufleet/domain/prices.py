"""Prices: values with source, validity and rank."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Final

from gpufleet.domain.model import Cloud

CURRENCY: Final = "USD"
UNIT: Final = "hour"
FREE_IF_PREEMPTED: Final = {Cloud.AWS: timedelta(hours=1), Cloud.GCP: timedelta(minutes=1)}
"""A spot instance that is preempted at a lower age is free; one that we terminate is charged (EC2 User Guide,
"Billing for interrupted Spot Instances"; Compute Engine, "Spot VMs")."""


class Rank(IntEnum):
    """Priority of price sources: the lowest rank wins."""

    OVERRIDE = 0
    LIVE = 1
    PACKAGED = 2
    OVERRIDE_BEFORE_ITS_DATE = 3
    """The earliest override, used for the time before it starts, with a note: better than no price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The part of a price that a spend commitment (Savings Plan, CUD) covers."""

    name: str
    usd_per_hour: Decimal
    share: Decimal
    """Covered share of the instance's time, 0 to 1; the remainder costs the list price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a SKU in USD per hour, valid from `valid_from` until the next price of the same source."""

    sku: str
    """For example `aws:ec2:g6.xlarge:spot` or `gcp:compute:g2-standard-4:on-demand`."""
    region: str
    usd_per_hour: Decimal
    source: str
    as_of: datetime
    """When the source last confirmed the price."""
    valid_from: datetime
    rank: Rank = Rank.LIVE
    zone: str | None = None
    """None: the price applies to all zones of the region."""
    unverified: bool = False
    note: str = ""
    list_usd_per_hour: Decimal | None = None
    """List price of one unit, if `usd_per_hour` is for several units, a share or a commitment; None if equal."""
    committed: Committed | None = None
    currency: str = CURRENCY
    unit: str = UNIT

    def __post_init__(self) -> None:
        if not self.usd_per_hour.is_finite() or self.usd_per_hour < 0:
            raise ValueError(f"{self.sku}: {self.usd_per_hour} USD/h is not a valid price (source {self.source})")
        if self.currency != CURRENCY:
            raise ValueError(f"{self.sku}: the price is in {self.currency}; price books support {CURRENCY} only")
