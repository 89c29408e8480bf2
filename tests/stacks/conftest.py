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
    """Resources make futures in the thread's loop; a test before this one may have left none (`asyncio.run`)."""
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
