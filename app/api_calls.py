"""Counts API calls of a cloud and of a metrics store by operation, for `--json` and for the daemon's metrics."""

from collections.abc import Callable, Mapping
from typing import Protocol

Count = Callable[[Mapping[str, int]], None]
"""Receives the API calls of each pass by operation, even if the pass failed."""


class Calls(Protocol):
    """The clients of a cloud, with the counts of their calls."""

    @property
    def counts(self) -> Mapping[str, int]: ...


class CountedStore(Protocol):
    """A metrics store, with the counts of its calls by path."""

    @property
    def calls(self) -> Mapping[str, int]: ...


def by_operation(cloud: Calls, store: CountedStore | None) -> dict[str, int]:
    """The number of calls per operation so far. `store`: None when no metrics store was queried."""
    asked: Mapping[str, int] = {} if store is None else store.calls
    return dict(cloud.counts) | {f"prometheus:{path}": n for path, n in asked.items()}
