"""One secret, two readers: instances check the agents' token, watchdogs show it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.fleets import token_place
from gpufleet.domain.model import CapacityType
from gpufleet.settings import document
from gpufleet.settings.document import Origin
from serving.instance_settings import to_json
from stacks.document import describe
from stacks.pools import instance_settings
from stacks.reading import parse
from tests.stacks.settings_files import AWS, GCP, TODAY, changed

ORIGIN = Origin(project="p", stack="s", revision="r", at=datetime(2026, 11, 21, tzinfo=UTC))


@pytest.mark.parametrize(("config", "own"), [(AWS, "/elsewhere/token"), (GCP, "elsewhere-token")], ids=["aws", "gcp"])
def test_watchdogs_look_where_instances_do(config: dict[str, Any], own: str) -> None:
    """Also under a name of the settings' own; documents that do not say it are read by the customary one."""
    for changes in ({}, {"agent_token": own}):
        told = parse(changed(config, changes), "file", TODAY)
        written = describe(told, {pool.name: () for pool in told.pools}, "s3://models", ORIGIN)
        found = document.parse(written, "fleet.json")
        at = to_json(instance_settings(told, told.pools[0], CapacityType.SPOT))["agent_token"]
        assert at.endswith(told.agent_token)
        assert token_place(found) == at
        customary = token_place(found.model_copy(update={"agent_token": None}))
        assert (customary == at) is (not changes)
