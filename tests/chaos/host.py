"""Faults of the control host: its clock and its ledger."""

import sqlite3

from tests.chaos.fault import Memory, Step
from tests.chaos.stage import Stage


def step_clock(seconds: int) -> Step:
    """The control host's clock is set: what was planned for its future is late, or all at once past."""

    def step(stage: Stage, memory: Memory) -> None:
        if not stage.clock.can_step:
            stage.say("no C compiler here: the clock stays as it is")
        stage.clock.step(seconds)

    return step


def lock_ledger(stage: Stage, memory: Memory) -> None:
    connection = sqlite3.connect(stage.ledger, timeout=60, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    memory.held["connection"] = connection


def unlock_ledger(stage: Stage, memory: Memory) -> None:
    memory.held["connection"].execute("ROLLBACK")
    memory.held["connection"].close()


def fill_disk(stage: Stage, memory: Memory) -> None:
    stage.limit_files("watchdogs", 0)


def empty_disk(stage: Stage, memory: Memory) -> None:
    stage.limit_files("watchdogs", None)
