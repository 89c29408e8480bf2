"""Tracks the sizes of groups: sizes requested by this process until the cloud shows them, and sizes last read.

A resize is started without waiting for its end, because waiting needs one more call per group. The next read gets all
sizes with one list. Operations are read (one list per zone) only for resizes that this list does not show yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from google.cloud import compute_v1

from gpufleet.clouds.gcp.calls import OPERATION_LIMIT_S, GoogleCalls, raise_failed
from gpufleet.clouds.gcp.operations import PAGE, began, has_times

RECENT_S: Final = 10.0
"""Maximum age of a known size for the check before a resize."""
_SHARED_FOR_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """The last resize of a group by this process."""

    size: int
    operation: str
    began: datetime | None
    """Start of the operation in the cloud's time; None: unknown."""
    at: float
    """Time of the request, in seconds of the caller's clock."""
    is_shown: bool = False
    """Whether the cloud has reported this size, or the operation is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    at: float
    operations: Mapping[str, Any]
    """Operations by name."""


class Resizes:
    """Known sizes and pending resizes of the groups of one fleet, by group name."""

    def __init__(self, calls: GoogleCalls, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock
        self._asked: dict[str, ResizeRequest] = {}
        self._sizes: dict[str, tuple[int, float]] = {}
        """Size that was last read or set, and when."""
        self._listed: dict[str, _Listed] = {}

    def asked(self, name: str) -> ResizeRequest | None:
        """The last resize by this process; None if there is none, or if the group has another size by now."""
        return self._asked.get(name)

    def recent_size(self, name: str) -> int | None:
        """The size that was read or set within `RECENT_S`; None if there is none."""
        size, at = self._sizes.get(name, (0, float("-inf")))
        return size if self._clock() - at <= RECENT_S else None

    def begin(self, name: str, service: str, place: Mapping[str, str], size: int) -> None:
        """Start to set a size. Raises CloudError if the cloud refuses it immediately."""
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
        """Discard the size of a group, because it changes by other means or is unknown."""
        self._asked.pop(name, None)
        self._sizes.pop(name, None)

    def read(self, name: str, place: Mapping[str, str], raw: Any) -> int:
        """The size that the group's manager reports, or the requested size while a resize is in progress.

        Raises CloudError once after the resize failed.
        """
        size = self._read(name, place, int(raw.target_size))
        self._sizes[name] = (size, self._clock())
        return size

    def note(self, name: str, raw: Any) -> None:
        """Record the size that a manager reports, unless a resize to another size is in progress."""
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
            # the manager may have been read just before the end; the next read compares the size
            self._asked[name] = replace(asked, is_shown=True)
            if state.error.errors:
                self.forget(name)
            raise_failed(f"the resize of {name} to {asked.size}", state)
        return asked.size

    def _state(self, asked: ResizeRequest, place: Mapping[str, str]) -> Any | None:
        """The operation of a resize; None if the list does not contain it (yet or any more)."""
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
