"""Tasks in threads that are given up without progress."""

import threading
from collections.abc import Callable

from app.watched_tasks import TIMEOUT, WatchedTask, run_all
from gpufleet.clouds.progress import Touch
from gpufleet.domain.activity import CloudError


def test_each_task_ends_once_and_one_failure_hides_no_other() -> None:
    def fails(touch: Touch) -> int:
        raise CloudError("refused", "AccessDenied")

    def broken(touch: Touch) -> int:
        raise ValueError("defect")

    tasks: list[tuple[str, Callable[[Touch], int]]] = [
        ("fails", fails),
        ("broken", broken),
        ("works", lambda touch: 7),
    ]
    found = dict(run_all([WatchedTask(name, run) for name, run in tasks], limit_s=30))
    assert found["works"] == 7
    assert isinstance(failed := found["fails"], CloudError) and failed.code == "AccessDenied"
    assert str(found["broken"]) == "ValueError: defect"


def test_a_task_without_progress_is_given_up_and_its_late_answer_is_ignored() -> None:
    release, late = threading.Event(), threading.Event()

    def hangs(touch: Touch) -> str:
        release.wait(30)
        late.set()
        return "late"

    found: list[tuple[str, str | CloudError]] = []
    for subject, answer in run_all([WatchedTask("hangs", hangs), WatchedTask("next", lambda touch: "done")], 0.3, 1):
        found.append((subject, answer))
        release.set()
    (first, given_up), second = found
    assert (first, second) == ("hangs", ("next", "done"))
    assert isinstance(given_up, CloudError) and given_up.code == TIMEOUT
    assert late.wait(30)


def test_progress_extends_the_limit() -> None:
    pause = threading.Event()

    def slow(touch: Touch) -> str:
        for _ in range(8):
            pause.wait(0.1)
            touch()
        return "done"

    assert list(run_all([WatchedTask("slow", slow)], limit_s=0.6)) == [("slow", "done")]


def test_work_between_two_answers_has_no_limit() -> None:
    pause = threading.Event()

    def computes(touch: Touch) -> str:
        touch(waits=False)
        pause.wait(0.6)
        touch()
        return "done"

    assert list(run_all([WatchedTask("computes", computes)], limit_s=0.2)) == [("computes", "done")]
