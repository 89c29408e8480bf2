"""Who asked to keep which instance: by a brake of its own, of its pool or of all, or by its tag. Pure."""

from collections.abc import Sequence
from datetime import datetime

from gpufleet.domain.brakes import Brake
from gpufleet.domain.model import Instance
from watchdogs.brakes import kept_by
from watchdogs.idle.judge import kept_by_tag


def kept_by_people(instances: Sequence[Instance], brakes: Sequence[Brake], now: datetime) -> dict[str, str]:
    """By instance, in the words for people; absent: nobody."""
    tagged = {one.id: said for one in instances if (said := kept_by_tag(one, now)) is not None}
    return tagged | kept_by(instances, brakes)
