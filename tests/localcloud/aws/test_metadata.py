"""The paths of the instance metadata service."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from localcloud.aws.metadata import InstanceFacts, listing, tree

_NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
_FACTS = InstanceFacts(
    instance_id="i-1",
    machine_type="g6.xlarge",
    zone="us-east-1a",
    address="127.16.1.4",
    image_id="ami-1",
    hostname="ip-127-16-1-4.ec2.internal",
    lifecycle="spot",
    target_state="InService",
    interruption=None,
    rebalance=None,
    role=None,
    profile_arn=None,
    tags={"gpu-fleet:pool": "chat"},
    user_data=b"#!/bin/sh\n",
    launched=_NOW,
    now=_NOW,
)


def test_instance_without_notice_has_no_spot_paths() -> None:
    assert not any(path.startswith(("meta-data/spot", "meta-data/events")) for path in tree(_FACTS))


def test_notice_has_the_formats_of_ec2() -> None:
    found = tree(replace(_FACTS, interruption=_NOW, rebalance=_NOW))
    assert json.loads(found["meta-data/spot/instance-action"]) == {
        "action": "terminate",
        "time": "2026-11-21T08:00:00Z",
    }
    assert found["meta-data/spot/termination-time"] == "2026-11-21T08:00:00Z"
    assert json.loads(found["meta-data/events/recommendations/rebalance"]) == {"noticeTime": "2026-11-21T08:00:00Z"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("meta-data/placement/", "availability-zone\nregion", id="folder"),
        pytest.param("meta-data/tags", "instance/", id="folder without slash"),
        pytest.param("", "dynamic/\nmeta-data/\nuser-data", id="top"),
        pytest.param("meta-data/nothing", None, id="nothing"),
    ],
)
def test_folders_are_listed(path: str, expected: str | None) -> None:
    assert listing(tree(_FACTS), path) == expected


def test_instance_outside_groups_has_no_target_state() -> None:
    assert "meta-data/autoscaling/target-lifecycle-state" not in tree(replace(_FACTS, target_state=""))
