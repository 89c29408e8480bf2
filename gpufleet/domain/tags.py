"""Tag and label keys. Components write them, watchdogs read them, policies require them.

AWS tags use `gpu-fleet:pool`; Google Cloud labels, which allow no colon, use `gpu-fleet-pool`. The code uses the
AWS form; `label` converts it.
"""

from datetime import UTC, datetime
from typing import Final

ENVIRONMENT: Final = "gpu-fleet:environment"
POOL: Final = "gpu-fleet:pool"
CAPACITY_TYPE: Final = "gpu-fleet:capacity-type"
OWNER: Final = "gpu-fleet:owner"
IDLE_SINCE: Final = "gpu-fleet:idle-since"
KEEP_UNTIL: Final = "gpu-fleet:keep-until"
ROLE: Final = "gpu-fleet:role"
"""Role of the environment's machines without a GPU. It makes no instance a router: the fleet document does."""
ROUTER: Final = "router"
"""Value of ROLE."""
CONTROL: Final = "control"
"""Value of ROLE: the control host."""
REVIEW_BY: Final = "gpu-fleet:review-by"
"""For a reservation without an end: the day on which operators review it."""

PREEMPTION_NOTICE: Final = "gpu-fleet-preemption-notice-s"
"""Metadata key of Google's spot instances: seconds from the preemption notice to the shutdown."""
REQUIRED: Final = frozenset({ENVIRONMENT, POOL, CAPACITY_TYPE, OWNER})

_FORMATS: Final = ("%Y%m%dt%H%M%Sz", "%Y%m%dt%H%Mz")


def label(key: str) -> str:
    """Convert a tag key to a Google Cloud label key: `gpu-fleet:pool` -> `gpu-fleet-pool`."""
    return key.replace(":", "-")


def write_time(moment: datetime) -> str:
    """Format a time as a tag value, such as `20261121t021530z`: valid as an AWS tag and as a Google label.

    Raises ValueError for a time without a time zone.
    """
    if moment.tzinfo is None:
        raise ValueError("a tag needs a time with a time zone")
    return moment.astimezone(UTC).strftime(_FORMATS[0])


def read_time(value: str | None) -> datetime | None:
    """Parse the time in a tag value, with or without seconds (`20261121t0215z`).

    None for a missing or invalid value: users write these tags, too.
    """
    if value is None:
        return None
    text = value.strip().lower()
    for form in _FORMATS:
        # strptime accepts "0215" for both formats, so the length decides.
        if len(text) == len("20261121t0215z") + (2 if form is _FORMATS[0] else 0):
            try:
                return datetime.strptime(text, form).replace(tzinfo=UTC)
            except ValueError:
                return None
    return None
