"""Shared pytest configuration: no deadlines that depend on the machine's speed, time limits, and safe parallel
runs of test files."""

import gc
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = (
    "tests.fixtures.clouds.emulator",
    "tests.fixtures.ledgers",
    "tests.fixtures.quarantine",
    "tests.fixtures.router.router",
)
SLOW_LIMIT_S = 1800
MAX_LINES: Final = 10
"""Maximum number of lines about the cause of a failure."""
WHOLE_FLEETS: Final = ("tests/chaos/", "tests/e2e/", "tests/vllm/")
"""Each test in these folders starts tens of processes, including real vLLM. A small machine runs one such fleet
at a time."""

settings.register_profile("loaded-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Name failures at once."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamedFailures(config))


class NamedFailures:
    """Names each failed test when it ends. A run of an hour that is cut off would name none."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed or self._config.get_verbosity() < 0:
            return
        terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
        cause = [line for line in report.longreprtext.splitlines() if line.startswith("E ")][:MAX_LINES]
        terminal.ensure_newline()
        for line in (f"{report.outcome}: {report.nodeid} ({report.when})", *cause):
            terminal.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests with the garbage collector off, and exclude the imported objects from later collections.

    Imports create no garbage. Repeated scans of a million such objects took half of the start of each worker, and
    a part of every test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests a longer limit than the default of pyproject.toml, and start them early."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))
    # sort whole files, so that the fixtures of a file are set up once
    items.sort(key=lambda item: (not item.nodeid.startswith(WHOLE_FLEETS), item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return the scheduler that `-n` uses to distribute tests."""
    from tests.fixtures import workers  # imported here: without `-n` no test needs xdist

    config.pluginmanager.register(workers.CleanInterrupt(config))
    return workers.OneFleetAtATime(config, log)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Reset the log setup after each test."""
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
    if (logs := sys.modules.get("gpufleet.logs")) is not None:
        logs.forget()
    if (logs := sys.modules.get("app.logs")) is not None:
        logs.reset()
