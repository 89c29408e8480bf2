"""Calls of a cloud and of a metrics store by operation, as `--json` and the daemon's metrics have them."""

from collections.abc import Mapping
from typing import Protocol


class Calls(Protocol):
    """The clients of a cloud, as far as a command counts them."""

    @property
    def counts(self) -> Mapping[str, int]: ...


class Store(Protocol):
    """A metrics store, likewise: by path."""

    @property
    def calls(self) -> Mapping[str, int]: ...


def by_operation(cloud: Calls, *stores: Store) -> dict[str, int]:
    """How often each was called so far."""
    return dict(cloud.counts) | {f"prometheus:{path}": n for store in stores for path, n in store.calls.items()}
