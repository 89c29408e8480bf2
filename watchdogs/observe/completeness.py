"""Whether a list of instances is whole, judged by what their groups and their metrics say.

What a list lacks is read one by one. It is never ended, and nothing is ended because it is missing (invariant 7).
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

SETTLED: Final = timedelta(minutes=2)
"""A cloud may list a new instance later than its group does."""
MOST_ASKED: Final = 20
"""Instances that one look reads one by one: a list that lacks more living ones than this is of no use."""


@dataclass(slots=True)
class InstanceReader:
    """Reads instances one by one, each once in a pass."""

    inventory: Inventory
    _read: dict[str, Instance | None | OSError] = field(default_factory=dict[str, Instance | None | OSError])

    def fails(self, errors: Mapping[str, str]) -> None:
        """Note those that the list had and that could not be read: asking again would say the same."""
        self._read |= {key: UnreadableError(key, error) for key, error in errors.items()}

    def has_read(self, key: str) -> bool:
        """Whether this pass has asked for it."""
        return key in self._read

    def instance(self, key: str) -> Instance | None:
        """None: the cloud no longer knows it. Raises OSError."""
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
    """Each with the group that lists it: its own tags may be lost."""
    unknown: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Group of those that could not be read, and why. They may live."""


def unlisted(reader: InstanceReader, groups: Iterable[Group], listed: Collection[str], now: datetime) -> Unlisted:
    """The settled members of these groups that the list lacks and that live, or may live.

    Raises CloudError when it lacks more than `MOST_ASKED` members and some of them live: it is empty, or half.
    """
    missing = [(group.name, key) for group in groups for key in group.instance_ids if key not in listed]
    living: dict[str, Instance] = {}
    unknown: dict[str, tuple[str, str]] = {}
    for group, key in missing[:MOST_ASKED]:
        try:
            one = reader.instance(key)
        except OSError as error:
            unknown[key] = (group, str(error))
            continue
        if one is not None and one.alive and now - one.launched_at > SETTLED:
            living[key] = replace(one, group=group)
    if len(missing) > MOST_ASKED and (living or unknown):
        group, key = next((group, key) for group, key in missing if key in living or key in unknown)
        raise CloudError(
            f"group {group} has {key}, which lives, and the list of instances lacks it and {len(missing) - 1} others:"
            " it is not whole"
        )
    return Unlisted(living=living, unknown=unknown)


def reporting_unlisted(
    reader: InstanceReader, environment: str, told: Mapping[str, Evidence], listed: Collection[str], now: datetime
) -> Sequence[Instance]:
    """Living, settled instances of the environment that report themselves and that the list lacks.

    No call to the cloud while list and metrics agree: half a page without an error is rare. Raises CloudError when
    there are more than `MOST_ASKED`. One that cannot be read tells of no pool: it is not in the list, so no pass ends
    it, and with it missing its pool only looks smaller than it is.
    """
    keys = sorted(key for key, evidence in told.items() if key not in listed and _fresh(evidence))
    found: list[Instance] = []
    for key in keys[:MOST_ASKED]:
        with suppress(OSError):
            one = reader.instance(key)
            if one is None or not one.alive or one.environment != environment:
                continue  # what has gone reports for a little longer
            if now - one.launched_at > SETTLED:
                found.append(one)
    if len(keys) > MOST_ASKED and found:
        raise CloudError(f"{found[0].id} lives and reports, but the list of instances lacks it: it is not whole")
    return found


def _fresh(evidence: Evidence) -> bool:
    return any(evidence.is_new(side) for side in (evidence.engine, evidence.gpu) if side is not None)
