"""Emissions of electricity: the stated grid factor."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFactor:
    """Grams of CO2e per kWh of electricity, as the settings state them. There is no default."""

    grams_per_kwh: Decimal
    source: str
    pue: Decimal | None = None
    """Energy of the whole facility divided by the energy of its machines. None: not stated, so it is not applied."""

    @property
    def grams_per_device_kwh(self) -> Decimal:
        """Grams per kWh that a device uses."""
        return self.grams_per_kwh * (self.pue or Decimal(1))

    @property
    def as_text(self) -> str:
        """For people: the factor with its source."""
        facility = "" if self.pue is None else f" x PUE {self.pue}"
        return f"{self.grams_per_kwh} g/kWh{facility} ({self.source})"
