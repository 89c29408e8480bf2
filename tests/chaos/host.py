"""Faults of the control host: its clock, its ledger, its HAProxy, and the cloud API that it uses."""

import os
import signal
import sqlite3

from tests.chaos import processes
from tests.chaos.fault import Memory, Step
from tests.chaos.stage import Stage


def step_clock(seconds: int) -> Step:
    """Change the control host's clock: planned work becomes late, or is due at once."""

    def step(stage: Stage, memory: Memory) -> None:
        if not stage.clock.is_there:
            stage.announce("no C compiler is installed: the clock fault is skipped")
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
    """Kill HAProxy with its open connections. Its controller must restart it."""
    stage.kills.append(processes.kill(processes.find("haproxy", f"-C {stage.folder / 'router'} ")))


def freeze_cloud(stage: Stage, memory: Memory) -> None:
    """Suspend every API of the cloud and all metadata services: they accept connections and do not respond."""
    memory.held["cloud"] = processes.find("-m localcloud.cloud", f"--state {stage.folder / 'cloud'} ")
    for pid in memory.held["cloud"]:
        os.kill(pid, signal.SIGSTOP)


def thaw_cloud(stage: Stage, memory: Memory) -> None:
    for pid in memory.held["cloud"]:
        os.kill(pid, signal.SIGCONT)
