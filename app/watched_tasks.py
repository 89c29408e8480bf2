"""Runs tasks in threads, and gives up those that make no progress."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpufleet.clouds.progress import Touch
from gpufleet.domain.activity import CloudError

WORKERS: Final = 32
"""Tasks that run at the same time."""
THREAD: Final = "watched task"
"""Name of the threads."""
TIMEOUT: Final = "Timeout"
"""Code of the CloudError of a task that was given up."""
_TICK_S: Final = 0.1
S = TypeVar("S")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class WatchedTask(Generic[S, T]):
    """Work about a subject."""

    subject: S
    run: Callable[[Touch], T]
    """May raise OSError."""
    touched: float | None = None
    """Clock at the last progress; None: it waits for no answer."""


def run_all(
    tasks: Sequence[WatchedTask[S, T]],
    limit_s: float,
    workers: int = WORKERS,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[S, T | CloudError]]:
    """Yield each subject once, as soon as its task ends or waited without progress for `limit_s`.

    The thread of a task that was given up stays behind and ends with the process; another one takes its place.
    """
    waiting = iter(tasks)
    answers: queue.SimpleQueue[tuple[WatchedTask[S, T], T | CloudError]] = queue.SimpleQueue()
    running: list[WatchedTask[S, T]] = []

    def work(task: WatchedTask[S, T]) -> None:
        try:
            answers.put((task, task.run(_touching(task, clock))))
        except OSError as error:
            answers.put((task, error if isinstance(error, CloudError) else CloudError(str(error))))
        except BaseException as error:  # noqa: BLE001 - a defect in one task is reported as its failure
            answers.put((task, CloudError(f"{type(error).__name__}: {error}")))

    while True:
        while len(running) < workers and (task := next(waiting, None)) is not None:
            task.touched = clock()
            running.append(task)
            threading.Thread(target=work, args=(task,), name=THREAD, daemon=True).start()
        if not running:
            return
        try:
            task, found = answers.get(timeout=_TICK_S)
        except queue.Empty:
            for task in [one for one in running if _waited(one, clock()) > limit_s]:
                running.remove(task)
                yield task.subject, CloudError(f"no answer within {limit_s:g} s", TIMEOUT)
            continue
        if task in running:
            running.remove(task)
            yield task.subject, found


def _touching(task: WatchedTask[S, T], clock: Callable[[], float]) -> Touch:
    def touch(*, waits: bool = True) -> None:
        task.touched = clock() if waits else None

    return touch


def _waited(task: WatchedTask[S, T], now: float) -> float:
    # the thread of the task writes it at the same time
    since = task.touched
    return 0.0 if since is None else now - since
