"""Sizes of groups: what this process has asked for, until the cloud shows it, and what was last read.

A resize is begun and not waited for: that would be one more call for each group. The next look reads all sizes in one
list. Only where a size is not shown there yet, the operation that sets it is read, in one list for each zone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from google.cloud import compute_v1

from gpufleet.clouds.gcp.calls import OPERATION_LIMIT_S, GoogleCalls, raise_failed
from gpufleet.clouds.gcp.operations import PAGE, began, has_times

LATELY_S: Final = 10.0
"""A size that was read so long ago at most is compared with the one that was seen."""
_SHARED_FOR_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """The last resize of a group by this process."""

    size: int
    operation: str
    began: datetime | None
    """In the cloud's time; None: it cannot be read."""
    at: float
    """In seconds of the caller's clock."""
    is_shown: bool = False
    """Whether the cloud has stated that size since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    at: float
    operations: Mapping[str, Any]
    """By name."""


class Resizes:
    """Of the groups of one fleet, by their names."""

    def __init__(self, calls: GoogleCalls, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock
        self._asked: dict[str, ResizeRequest] = {}
        self._sizes: dict[str, tuple[int, float]] = {}
        """As they were last read or set, and when."""
        self._listed: dict[str, _Listed] = {}

    def asked(self, name: str) -> ResizeRequest | None:
        """The last resize by this process, unless the group has another size by now."""
        return self._asked.get(name)

    def lately(self, name: str) -> int | None:
        """The size that was read or set within `LATELY_S`."""
        size, at = self._sizes.get(name, (0, float("-inf")))
        return size if self._clock() - at <= LATELY_S else None

    def begin(self, name: str, service: str, place: Mapping[str, str], size: int) -> None:
        """Set a size. Raises CloudError where the cloud refuses that at once."""
        self.forget(name)
        state = self._calls.begin(service, "resize", **place, size=size)
        self._asked[name] = ResizeRequest(
            size=size,
            operation=str(state.name),
            began=began(state) if has_times(state) else None,
            at=self._clock(),
        )
        self._sizes[name] = (size, self._clock())
        self._listed.clear()

    def forget(self, name: str) -> None:
        """Note that the size of a group changes by other means, or that it is not known what it is."""
        self._asked.pop(name, None)
        self._sizes.pop(name, None)

    def read(self, name: str, place: Mapping[str, str], raw: Any) -> int:
        """The size of a group as its manager states it, or the one that it is being given. Raises CloudError once
        when that has failed.
        """
        size = self._read(name, place, int(raw.target_size))
        self._sizes[name] = (size, self._clock())
        return size

    def note(self, name: str, raw: Any) -> None:
        """Note the size that a manager states, unless the group is being given another one."""
        asked, stated = self._asked.get(name), int(raw.target_size)
        if asked is None or asked.size == stated:
            self._sizes[name] = (stated, self._clock())

    def _read(self, name: str, place: Mapping[str, str], stated: int) -> int:
        asked = self._asked.get(name)
        if asked is None:
            return stated
        if stated == asked.size:
            self._asked[name] = replace(asked, is_shown=True)
            return stated
        if asked.is_shown or self._clock() - asked.at > OPERATION_LIMIT_S:
            self.forget(name)
            return stated
        state = self._state(asked, place)
        if state is not None and state.status == compute_v1.Operation.Status.DONE:
            # the size may have been stated just before: the next look compares it
            self._asked[name] = replace(asked, is_shown=True)
            if state.error.errors:
                self.forget(name)
            raise_failed(f"the resize of {name} to {asked.size}", state)
        return asked.size

    def _state(self, asked: ResizeRequest, place: Mapping[str, str]) -> Any | None:
        """The operation of a resize; None: it is not known any more, or not yet."""
        if "zone" not in place:
            state: Any = self._calls.one(
                "region_operations", "get", region=place["region"], operation=asked.operation
            )
            return state
        zone = place["zone"]
        known = self._listed.get(zone)
        if known is None or self._clock() - known.at >= _SHARED_FOR_S:
            waited = [one.began for one in self._asked.values() if one.began is not None and not one.is_shown]
            oldest = min(waited, default=None)
            found = self._calls.newest(
                "zone_operations",
                "list",
                lambda one: has_times(one) and (oldest is None or began(one) < oldest),
                zone=zone,
                max_results=PAGE,
            )
            known = _Listed(at=self._clock(), operations={str(one.name): one for one in found})
            self._listed[zone] = known
        return known.operations.get(asked.operation)
