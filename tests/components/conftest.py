import pulumi
import pytest

from tests.fixtures.fakes import RecordingMocks


@pytest.fixture
def mocks() -> RecordingMocks:
    recording = RecordingMocks()
    pulumi.runtime.set_mocks(recording, project="gpu-fleet", stack="test", preview=False)
    return recording
