"""How much time an instance on Google Cloud assumes after a preemption notice."""

from datetime import UTC, datetime, timedelta

import pytest

from gpufleet.clouds.gcp.signed import GoogleMetadata
from hosts.node.google import GoogleServices
from hosts.node.ports import Notice

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
KNOWN = {
    "instance/zone": "projects/1/zones/us-central1-a",
    "project/project-id": "p",
    "instance/name": "chat-1",
    "instance/network-interfaces/0/ip": "10.0.0.2",
    "instance/machine-type": "projects/1/machineTypes/g2-standard-8",
    "instance/preempted": "TRUE",
}


class FixedMetadata(GoogleMetadata):
    """A metadata server with given values."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__()
        self.values = values

    def get(self, path: str) -> str | None:
        return self.values.get(path)


@pytest.mark.parametrize(
    ("asked_for", "seconds"),
    [
        pytest.param({}, 25, id="none asked for"),
        pytest.param({"instance/attributes/gpu-fleet-preemption-notice-s": "120"}, 115, id="two minutes"),
        pytest.param({"instance/attributes/gpu-fleet-preemption-notice-s": "0"}, 25, id="none"),
        pytest.param({"instance/attributes/gpu-fleet-preemption-notice-s": "two minutes"}, 25, id="nonsense"),
    ],
)
def test_the_notice_of_the_instance_template_is_used(asked_for: dict[str, str], seconds: int) -> None:
    side = GoogleServices(FixedMetadata(KNOWN | asked_for), lambda: NOW)
    (notice,) = side.notices()
    assert (notice.kind, notice.at) == (Notice.PREEMPTION, NOW + timedelta(seconds=seconds))
