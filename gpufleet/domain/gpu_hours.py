"""Use of GPUs by the hour, as a metrics store of a cloud reports it."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple


class HourUse(NamedTuple):
    """The GPUs of one instance in one hour."""

    gpus: int
    """GPUs with values."""
    samples: float
    """Number of samples of the GPU with the fewest."""
    utilization_max: float | None
    """Highest utilization of any GPU in percent, 0 to 100; None: power only."""
    watts_max: float | None = None
    """Highest power of any GPU; None: not reported."""


HoursOfInstances = Mapping[str, Mapping[datetime, HourUse]]
"""By instance id, by the start of the hour in UTC. An instance without values is absent."""
