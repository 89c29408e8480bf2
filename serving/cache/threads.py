"""The same work in several threads, ended by the first that fails.

Plainer than the standard library's executors, which bring logging along and hand over each piece by itself: a model
may be many small pieces.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class WorkQueue(Generic[Thing]):
    """What several threads take from, one thing at a time."""

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
        """Give nothing out any more."""
        self._stopped = True


def in_threads(count: int, work: Callable[[WorkQueue[Thing]], None], things: Iterable[Thing]) -> None:
    """Let `count` threads do `work`, which takes from `things` until nothing is left.

    Returns, or raises the first exception of any of them, when all have ended.
    """
    shared, failures, started = WorkQueue(things), list[BaseException](), list[threading.Thread]()

    def guarded() -> None:
        try:
            work(shared)
        except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
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
        # an interrupted caller leaves no thread behind
        shared.stop()
        for thread in started:
            thread.join()
    if failures:
        raise failures[0]
