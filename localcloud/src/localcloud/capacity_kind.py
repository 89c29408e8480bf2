"""How an instance is bought, as the capacity model of both emulated clouds distinguishes it."""

from enum import StrEnum


class Kind(StrEnum):
    """Spot or full price. An instance in reserved capacity is `ON_DEMAND`."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
