"""The state of a fleet's cloud as files on this machine.

Router, console and Prometheus read these files, because they have no cloud credentials. `app.feed_writer` writes
them.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from app.router_fleet import LiveFleet
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Instance, InstanceList
from gpufleet.domain.parsed import is_map
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.quotas import QuotaNeed
from serving.router.policy import FILE_NAME

FEED_VALID_S: Final = 60.0
"""An older list of instances is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPaths:
    """Files of one feed."""

    folder: Path

    @property
    def document(self) -> Path:
        return self.folder / "fleet.json"

    @property
    def policy(self) -> Path:
        """Next to the document, as in the bucket."""
        return self.folder / FILE_NAME

    @property
    def instances(self) -> Path:
        return self.folder / "instances.json"

    @property
    def targets(self) -> Path:
        """The targets of Prometheus, in the format of its `file_sd_configs`."""
        return self.folder / "targets.json"

    @property
    def limits(self) -> Path:
        """Quotas of the account, by name."""
        return self.folder / "limits.json"

    @property
    def engine_key(self) -> Path:
        """A secret. Only the router's group may read its folder."""
        return self.folder / "router" / "engine-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The instances of a fleet, and when they were read."""

    at: float
    """Seconds since 1970."""
    instances: tuple[Instance, ...]
    errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """By instance id: why the instance could not be read."""


SEEN: Final = TypeAdapter(Seen)


class FedInventory:
    """The instances of the feed's fleet. It cannot change the cloud."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = FeedPaths(folder=folder).instances
        self._clock = clock

    def instances(self) -> Sequence[Instance]:
        """All instances that are not terminated. Raises CloudError when one could not be read, or the feed is old."""
        return self.listed().whole()

    def listed(self) -> InstanceList:
        """All instances that are not terminated, with an error for each that could not be read.

        Raises CloudError when the feed cannot be read or is old.
        """
        try:
            seen = SEEN.validate_json(self._path.read_bytes())
        except (OSError, ValidationError) as error:
            raise CloudError(f"{self._path}: cannot be used: {error}") from error
        if (age := self._clock() - seen.at) > FEED_VALID_S:
            raise CloudError(f"{self._path}: is {age:.0f} s old: see `journalctl -u gpufleet-feed`")
        return InstanceList(instances=seen.instances, errors=seen.errors)

    def instance(self, instance_id: str) -> Instance | None:
        """One instance; None when the feed does not contain it. Raises CloudError."""
        listed = self.listed()
        if instance_id in listed.errors:
            raise CloudError(listed.errors[instance_id])
        return next((one for one in listed.instances if one.id == instance_id), None)

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        """Raises CloudError: the feed contains only instances that are not terminated."""
        raise _not_fed()

    def gpus(self) -> InstanceList:
        """Raises CloudError: the feed contains only the fleet's instances."""
        raise _not_fed()

    def claiming(self) -> InstanceList:
        """Raises CloudError: the feed contains only the fleet's instances."""
        raise _not_fed()

    def stop(self, instance_id: str) -> None:
        """Raises CloudError: the feed is read-only."""
        raise _not_fed()

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """An error for each instance: the feed is read-only."""
        return dict.fromkeys(instance_ids, str(_not_fed()))

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        """An error for each instance: the feed is read-only."""
        return dict.fromkeys(instance_ids, str(_not_fed()))


class FedFleet(LiveFleet):
    """A router's sources on a machine with a feed. `url` names the fleet document there."""

    def __init__(self, url: str, folder: Path, keys_file: Path | None = None) -> None:
        super().__init__(url, keys_file)
        self._paths = FeedPaths(folder=folder)
        self._inventory = FedInventory(folder)

    def engine_key(self, document: FleetDocument) -> str:
        """Raises OSError."""
        return self._paths.engine_key.read_text("ascii").strip()

    def instances(self, document: FleetDocument) -> Sequence[Instance]:
        """Raises CloudError when the inventory is incomplete or old."""
        return self._inventory.instances()


def fed_limits(folder: Path) -> Callable[[FleetDocument, Sequence[QuotaNeed]], Mapping[str, float]]:
    """Returns a function that reads the account's quotas from a feed. That function raises CloudError."""
    path = FeedPaths(folder=folder).limits

    def read(document: FleetDocument, wanted: Sequence[QuotaNeed]) -> Mapping[str, float]:
        try:
            found: Any = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CloudError(f"{path}: cannot be used: {error}") from error
        if not is_map(found):
            raise CloudError(f"{path}: is not a JSON object")
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}

    return read


def _not_fed() -> CloudError:
    return CloudError(
        "this process has no cloud credentials: run the command as the user gpufleet-watch, which has them"
    )
