"""Checks by groups and metrics whether a list of instances is complete.

Instances that a list lacks are read one by one. They are never ended, and nothing is ended because they are missing
(invariant 7).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import CloudError, UnreadableError
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Group, Instance
from watchdogs.ports import Inventory

LISTING_DELAY: Final = timedelta(minutes=2)
"""A cloud may list a new instance later than its group does."""
MAX_ASKED: Final = 20
"""Instances that one observation reads one by one. A list that lacks more running instances is unusable."""


@dataclass(slots=True)
class InstanceReader:
    """Reads instances one by one, each once per pass."""

    inventory: Inventory
    _read: dict[str, Instance | None | OSError] = field(default_factory=dict[str, Instance | None | OSError])

    def fails(self, errors: Mapping[str, str]) -> None:
        """Note instances that the list had with an error: reading them again would give the same error."""
        self._read |= {key: UnreadableError(key, error) for key, error in errors.items()}

    def has_read(self, key: str) -> bool:
        """Whether this pass has read the instance."""
        return key in self._read

    def instance(self, key: str) -> Instance | None:
        """The instance; None: the cloud no longer knows it. Raises OSError."""
        if key not in self._read:
            try:
                self._read[key] = self.inventory.instance(key)
            except OSError as error:
                self._read[key] = error
        found = self._read[key]
        if isinstance(found, OSError):
            raise found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlisted:
    """Members of groups that the list of instances lacks."""

    living: Mapping[str, Instance] = field(default_factory=dict[str, Instance])
    """Running instances, each with the group that lists it: its own tags may be lost."""
    unknown: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """By instance that could not be read: its group and the error. It may be running."""


def unlisted(reader: InstanceReader, groups: Iterable[Group], listed: Collection[str], now: datetime) -> Unlisted:
    """The members of these groups that run, or may run, and that the list lacks. Very new instances do not count.

    Raises CloudError when the list lacks more than `MAX_ASKED` members and some of them run or cannot be read.
    """
    missing = [(group.name, key) for group in groups for key in group.instance_ids if key not in listed]
    living: dict[str, Instance] = {}
    unknown: dict[str, tuple[str, str]] = {}
    for group, key in missing[:MAX_ASKED]:
        try:
            one = reader.instance(key)
        except OSError as error:
            unknown[key] = (group, str(error))
            continue
        if one is not None and one.alive and now - one.launched_at > LISTING_DELAY:
            living[key] = replace(one, group=group)
    if len(missing) > MAX_ASKED and (living or unknown):
        group, key = next((group, key) for group, key in missing if key in living or key in unknown)
        raise CloudError(
            f"the list of instances is incomplete: it lacks {key} of group {group}, which runs or cannot be read, and"
            f" {len(missing) - 1} others"
        )
    return Unlisted(living=living, unknown=unknown)


def reporting_unlisted(
    reader: InstanceReader, environment: str, reported: Mapping[str, Evidence], listed: Collection[str], now: datetime
) -> Sequence[Instance]:
    """Running instances of the environment that report metrics and that the list lacks. Very new ones do not count.

    No call to the cloud is made while list and metrics agree. Raises CloudError when there are more than
    `MAX_ASKED`. An instance that cannot be read is ignored: it is not in the list, so no pass ends it, and its pool
    only seems smaller than it is.
    """
    keys = sorted(key for key, evidence in reported.items() if key not in listed and _fresh(evidence))
    found: list[Instance] = []
    for key in keys[:MAX_ASKED]:
        with suppress(OSError):
            one = reader.instance(key)
            if one is None or not one.alive or one.environment != environment:
                continue  # metrics of an ended instance stay for a while
            if now - one.launched_at > LISTING_DELAY:
                found.append(one)
    if len(keys) > MAX_ASKED and found:
        raise CloudError(
            f"the list of instances is incomplete: it lacks {found[0].id}, which is running and reports metrics"
        )
    return found


def _fresh(evidence: Evidence) -> bool:
    return any(evidence.is_new(side) for side in (evidence.engine, evidence.gpu) if side is not None)
