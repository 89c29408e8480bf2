"""Tag and label keys. Components write them, watchdogs read them, policies require them.

AWS tags use `gpu-fleet:pool`, Google Cloud labels (which know no colon) `gpu-fleet-pool`. In our own
code the AWS form is the name; `label` gives the other one.
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
"""Of the environment's own machines without a GPU. It makes no instance a router: the fleet document names those."""
ROUTER: Final = "router"
"""Value of ROLE."""
CONTROL: Final = "control"
"""Value of ROLE: the control host."""
REVIEW_BY: Final = "gpu-fleet:review-by"
"""Of a reservation without an end: the day on which people look at it again."""

PREEMPTION_NOTICE: Final = "gpu-fleet-preemption-notice-s"
"""Metadata of Google's spot instances: seconds from the notice of a preemption to the order to shut down."""
REQUIRED: Final = frozenset({ENVIRONMENT, POOL, CAPACITY_TYPE, OWNER})

_FORMATS: Final = ("%Y%m%dt%H%M%Sz", "%Y%m%dt%H%Mz")


def label(key: str) -> str:
    """The label key of Google Cloud for a tag key: `gpu-fleet:pool` -> `gpu-fleet-pool`."""
    return key.replace(":", "-")


def write_time(moment: datetime) -> str:
    """A time as a tag value, `20261121t021530z`: legal as an AWS tag and as a Google label.

    Raises ValueError for a naive time.
    """
    if moment.tzinfo is None:
        raise ValueError("a time without a zone cannot become a tag")
    return moment.astimezone(UTC).strftime(_FORMATS[0])


def read_time(value: str | None) -> datetime | None:
    """The time of a tag value, with or without seconds (`20261121t0215z`).

    None for no value and for what is not a time: people write there, too.
    """
    if value is None:
        return None
    text = value.strip().lower()
    for form in _FORMATS:
        # strptime takes "0215" for both forms, so the length decides
        if len(text) == len("20261121t0215z") + (2 if form is _FORMATS[0] else 0):
            try:
                return datetime.strptime(text, form).replace(tzinfo=UTC)
            except ValueError:
                return None
    return None
