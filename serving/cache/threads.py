"""Runs the same work in several threads; the first failure stops all.

The standard library's executors import logging and hand over each item separately, which is slow for a model of many
small chunks. This module does neither.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class WorkQueue(Generic[Item]):
    """A source of items for several threads: each item goes to one thread."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()
        self._stopped = False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._items)

    def stop(self) -> None:
        """Hand out no more items."""
        self._stopped = True


def run_in_threads(count: int, work: Callable[[WorkQueue[Item]], None], items: Iterable[Item]) -> None:
    """Run `work` in `count` threads; each takes items from `items` until none is left.

    Waits for all threads. Raises the first exception of any thread.
    """
    queue, failures, started = WorkQueue(items), list[BaseException](), list[threading.Thread]()

    def run() -> None:
        try:
            work(queue)
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            queue.stop()
            failures.append(error)

    try:
        for _ in range(count):
            thread = threading.Thread(target=run)
            thread.start()
            started.append(thread)
        for thread in started:
            thread.join()
    finally:
        # when the caller is interrupted, no thread keeps running
        queue.stop()
        for thread in started:
            thread.join()
    if failures:
        raise failures[0]
