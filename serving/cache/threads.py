"""Runs the same work in several threads; the first failure stops all.

The standard library's executors import logging and hand over each item separately, which is slow for a model of many
small chunks. This module does neither.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class WorkQueue(Generic[Thing]):
    """A source of items for several threads: each item goes to one thread."""

    def __init__(self, things: Iterable[Thing]) -> None:
        self._things = iter(things)
        self._guard = threading.Lock()
        self._stopped = False

    def __iter__(self) -> Iterator[Thing]:
        return self

    def __next__(self) -> Thing:
        with self._guard:
            if self._stopped:
                raise StopIteration
            return next(self._things)

    def stop(self) -> None:
        """Hand out no more items."""
        self._stopped = True


def in_threads(count: int, work: Callable[[WorkQueue[Thing]], None], things: Iterable[Thing]) -> None:
    """Run `work` in `count` threads; each takes items from `things` until none is left.

    Waits for all threads. Raises the first exception of any thread.
    """
    shared, failures, started = WorkQueue(things), list[BaseException](), list[threading.Thread]()

    def guarded() -> None:
        try:
            work(shared)
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            shared.stop()
            failures.append(error)

    try:
        for _ in range(count):
            thread = threading.Thread(target=guarded)
            thread.start()
            started.append(thread)
        for thread in started:
            thread.join()
    finally:
        # when the caller is interrupted, no thread keeps running
        shared.stop()
        for thread in started:
            thread.join()
    if failures:
        raise failures[0]
