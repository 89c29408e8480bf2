"""What all tests share: the machine's speed decides nothing, nothing may hang, and files may run side by side."""

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
WHOLE_FLEETS: Final = ("tests/chaos/", "tests/e2e/", "tests/vllm/")
"""Each test there starts tens of processes, real vLLM among them: on a small machine one such fleet at a time."""

settings.register_profile("loaded-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded-machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without the garbage collector, and keep it off what they imported.

    Nothing of it is garbage, and looking at a million such objects again and again took half of the time of each
    worker's start, and some of every test's.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow proofs a longer limit than pyproject.toml gives every test, and an early start."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))
    # whole files, so that what a file's tests share is started once
    items.sort(key=lambda item: (not item.nodeid.startswith(WHOLE_FLEETS), item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """What `-n` distributes by."""
    from tests.fixtures import workers  # only here: without `-n` no test needs xdist

    config.pluginmanager.register(workers.CleanInterrupt(config))
    return workers.OneFleetAtATime(config, log)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """What one test sets up for its logs is over with it."""
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
    if (logs := sys.modules.get("gpufleet.logs")) is not None:
        logs.forget()
    if (logs := sys.modules.get("app.logs")) is not None:
        logs.reset()
