"""Faults of the control host: its clock, its ledger, its HAProxy, and the cloud that it asks."""

import os
import signal
import sqlite3

from tests.chaos import processes
from tests.chaos.fault import Memory, Step
from tests.chaos.stage import Stage


def step_clock(seconds: int) -> Step:
    """The control host's clock is set: what was planned for its future is late, or all at once past."""

    def step(stage: Stage, memory: Memory) -> None:
        if not stage.clock.is_there:
            stage.say("no C compiler here: the clock stays as it is")
        stage.clock.set(seconds)

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


def kill_haproxy(stage: Stage, memory: Memory) -> None:
    """HAProxy alone, with what it carries: its controller is to start it again."""
    stage.kills.append(processes.kill(processes.find("haproxy", f"-C {stage.folder / 'router'} ")))


def freeze_cloud(stage: Stage, memory: Memory) -> None:
    """Every API of the cloud and all its metadata services: connections are taken, and nobody answers."""
    memory.held["cloud"] = processes.find("-m localcloud.cloud", f"--state {stage.folder / 'cloud'} ")
    for pid in memory.held["cloud"]:
        os.kill(pid, signal.SIGSTOP)


def thaw_cloud(stage: Stage, memory: Memory) -> None:
    for pid in memory.held["cloud"]:
        os.kill(pid, signal.SIGCONT)
