"""Tests that agents and watchdogs use the same boot limit: agents abort a boot after it, and watchdogs wait until
then.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpufleet.domain.boots import BOOT_LIMIT
from gpufleet.domain.model import CapacityType
from gpufleet.settings import document
from gpufleet.settings.document import Origin
from stacks.document import describe
from stacks.pools import instance_settings
from stacks.reading import parse
from tests.fixtures.stacks.settings_files import AWS, GCP, TODAY, changed

ORIGIN = Origin(project="p", stack="s", revision="r", at=datetime(2026, 11, 21, tzinfo=UTC))


@pytest.mark.parametrize("config", [AWS, GCP], ids=["aws", "gcp"])
def test_watchdogs_and_agents_use_the_same_boot_limit(config: dict[str, Any]) -> None:
    settings = parse(changed(config, {"pools.0.engine.start_limit": "40m"}), "file", TODAY)
    written = describe(settings, {pool.name: () for pool in settings.pools}, "s3://models", ORIGIN)
    pools = document.parse(written, "fleet.json").pools
    agents = instance_settings(settings, settings.pools[0], CapacityType.SPOT).boot_limits
    assert pools[0].boot_limit == agents.total == BOOT_LIMIT + timedelta(minutes=25)
    assert {pool.boot_limit for pool in pools[1:]} <= {BOOT_LIMIT}


def test_earlier_releases_read_the_document_of_pools_with_the_default_limit() -> None:
    settings = parse(changed(AWS, {}), "file", TODAY)
    written = describe(settings, {pool.name: () for pool in settings.pools}, "s3://models", ORIGIN)
    assert "boot_limit" not in written
