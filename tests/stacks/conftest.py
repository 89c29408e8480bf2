import asyncio

import pulumi
import pytest

from tests.fixtures.fakes import RecordingMocks


@pytest.fixture
def mocks() -> RecordingMocks:
    recording = RecordingMocks()
    pulumi.runtime.set_mocks(recording, project="gpu-fleet", stack="test", preview=False)
    return recording


@pytest.fixture(autouse=True)
def _event_loop_of_the_thread() -> None:  # pyright: ignore[reportUnusedFunction]
    """Set an event loop for the thread. Resources create futures in it, and an earlier test may have removed it
    (`asyncio.run`).
    """
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
