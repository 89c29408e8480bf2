"""A price, from a cloud's answer to a charge."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Final

from gpufleet.domain.model import Cloud

CURRENCY: Final = "USD"
UNIT: Final = "hour"
FREE_IF_INTERRUPTED: Final = {Cloud.AWS: timedelta(hours=1), Cloud.GCP: timedelta(minutes=1)}
"""A spot instance that its cloud takes when it is younger costs nothing; one that we end ourselves is charged (EC2
User Guide, "Billing for interrupted Spot Instances"; Compute Engine, "Spot VMs")."""


class Rank(IntEnum):
    """Which source wins where several know a price: the lowest."""

    OVERRIDE = 0
    LIVE = 1
    PACKAGED = 2
    OVERRIDE_BEFORE_ITS_DATE = 3
    """The earliest override, for the time before it: better than nothing, and said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a spend commitment (Savings Plan, CUD) pays of a price."""

    name: str
    usd_per_hour: Decimal
    share: Decimal
    """Of the instance's time, from 0 to 1; the rest costs the list price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per hour of one sku, from `valid_from` until the next price of its source."""

    sku: str
    """`aws:ec2:g6.xlarge:spot`, `gcp:compute:g2-standard-4:on-demand`, …"""
    region: str
    usd_per_hour: Decimal
    source: str
    as_of: datetime
    """When the source last said so."""
    valid_from: datetime
    rank: Rank = Rank.LIVE
    zone: str | None = None
    """None: all zones of the region."""
    unverified: bool = False
    note: str = ""
    list_usd_per_hour: Decimal | None = None
    """Of one unit, where `usd_per_hour` is that of several, of a share or with a commitment; None: the same."""
    committed: Committed | None = None
    currency: str = CURRENCY
    unit: str = UNIT

    def __post_init__(self) -> None:
        if not self.usd_per_hour.is_finite() or self.usd_per_hour < 0:
            raise ValueError(f"{self.sku}: a price of {self.usd_per_hour} USD/h is no price (source {self.source})")
        if self.currency != CURRENCY:
            raise ValueError(f"{self.sku}: the price is in {self.currency}; this book knows {CURRENCY} only")
