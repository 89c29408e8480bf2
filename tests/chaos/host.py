"""Faults of the control host: its clock, its ledger, its HAProxy, and the cloud API that it uses."""

import os
import signal
import sqlite3

from tests.chaos import processes
from tests.chaos.fault import Memory, Step
from tests.chaos.testbed import ChaosTestbed


def step_clock(seconds: int) -> Step:
    """Change the control host's clock: planned work becomes late, or is due at once."""

    def step(testbed: ChaosTestbed, memory: Memory) -> None:
        if not testbed.clock.is_there:
            testbed.announce("no C compiler is installed: the clock fault is skipped")
        testbed.clock.set(seconds)

    return step


def lock_ledger(testbed: ChaosTestbed, memory: Memory) -> None:
    connection = sqlite3.connect(testbed.ledger, timeout=60, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    memory.held["connection"] = connection


def unlock_ledger(testbed: ChaosTestbed, memory: Memory) -> None:
    memory.held["connection"].execute("ROLLBACK")
    memory.held["connection"].close()


def fill_disk(testbed: ChaosTestbed, memory: Memory) -> None:
    testbed.limit_files("watchdogs", 0)


def empty_disk(testbed: ChaosTestbed, memory: Memory) -> None:
    testbed.limit_files("watchdogs", None)


def kill_haproxy(testbed: ChaosTestbed, memory: Memory) -> None:
    """Kill HAProxy with its open connections. Its controller must restart it."""
    testbed.kills.append(processes.kill(processes.find("haproxy", f"-C {testbed.folder / 'router'} ")))


def freeze_cloud(testbed: ChaosTestbed, memory: Memory) -> None:
    """Suspend every API of the cloud and all metadata services: they accept connections and do not respond."""
    memory.held["cloud"] = processes.find("-m localcloud.cloud", f"--state {testbed.folder / 'cloud'} ")
    for pid in memory.held["cloud"]:
        os.kill(pid, signal.SIGSTOP)


def thaw_cloud(testbed: ChaosTestbed, memory: Memory) -> None:
    for pid in memory.held["cloud"]:
        os.kill(pid, signal.SIGCONT)
