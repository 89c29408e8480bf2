"""Calls of a cloud and of a metrics store by operation, as `--json` and the daemon's metrics have them."""

from collections.abc import Callable, Mapping
from typing import Protocol

Count = Callable[[Mapping[str, int]], None]
"""Is told of each pass' API calls by operation, however it ended."""


class Calls(Protocol):
    """The clients of a cloud, as far as a command counts them."""

    @property
    def counts(self) -> Mapping[str, int]: ...


class CountedStore(Protocol):
    """A metrics store, likewise: by path."""

    @property
    def calls(self) -> Mapping[str, int]: ...


def by_operation(cloud: Calls, store: CountedStore | None) -> dict[str, int]:
    """How often each was called so far; None: no store was asked."""
    asked: Mapping[str, int] = {} if store is None else store.calls
    return dict(cloud.counts) | {f"prometheus:{path}": n for path, n in asked.items()}
