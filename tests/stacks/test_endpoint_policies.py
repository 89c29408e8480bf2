"""Tests that no endpoint of the network gives access to an unknown account, based on the generated policies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from components.aws.endpoints import WITH_POLICY
from stacks.value_checks import ENDPOINTS
from tests.fixtures.iam import allowed, statements
from tests.fixtures.stacks.declared import declared
from tests.fixtures.stacks.settings_files import AWS, FLEET, changed

ACCOUNT, REGION = AWS[FLEET]["account"], AWS["aws:region"]
BUCKET = AWS[FLEET]["bucket"]["name"]
OTHER_ACCOUNT = "999999999999"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
PACKAGE = f"arn:aws:s3:::al2023-repos-{REGION}-de612dc2/core/x.rpm"
LAYER = f"arn:aws:s3:::prod-{REGION}-starport-layer-bucket/sha256/abc"


def policies(folder: Path, changes: dict[str, Any] | None = None) -> dict[str, list[Mapping[str, Any]]]:
    """Return the statements of each endpoint's policy, by service."""
    recording = declared(changed(AWS, changes or {}), "aws-prod", folder)
    found = {
        one.inputs["serviceName"].removeprefix(f"com.amazonaws.{REGION}."): one for one in recording.of_type(ENDPOINT)
    }
    return {name: statements(one.inputs["policy"]) for name, one in found.items()}


def by(principal: str, owner: str | None) -> dict[str, str]:
    return {"aws:PrincipalAccount": principal} | ({"aws:ResourceAccount": owner} if owner else {})


@pytest.mark.parametrize(
    ("action", "resource", "principal", "owner", "passes"),
    [
        pytest.param("s3:GetObject", f"arn:aws:s3:::{BUCKET}/models/chat/x", ACCOUNT, ACCOUNT, True, id="our bucket"),
        pytest.param("s3:PutObject", f"arn:aws:s3:::{BUCKET}/backups/x", ACCOUNT, ACCOUNT, True, id="a backup"),
        pytest.param(
            "s3:GetObject", f"arn:aws:s3:::{BUCKET}/models/x", ACCOUNT, OTHER_ACCOUNT, True, id="a given bucket"
        ),
        pytest.param(
            "s3:PutObject", "arn:aws:s3:::loot/weights", ACCOUNT, OTHER_ACCOUNT, False, id="our key, their bucket"
        ),
        pytest.param(
            "s3:PutObject", "arn:aws:s3:::loot/weights", OTHER_ACCOUNT, OTHER_ACCOUNT, False, id="a URL of theirs"
        ),
        pytest.param(
            "s3:GetObject",
            "arn:aws:s3:::loot/prompt",
            OTHER_ACCOUNT,
            OTHER_ACCOUNT,
            False,
            id="data in the name of a key",
        ),
        pytest.param(
            "s3:PutObject", f"arn:aws:s3:::{BUCKET}/x", OTHER_ACCOUNT, ACCOUNT, False, id="their key, our bucket"
        ),
        pytest.param("s3:GetObject", LAYER, OTHER_ACCOUNT, OTHER_ACCOUNT, True, id="an image's layer"),
        pytest.param("s3:GetObject", PACKAGE, "anonymous", OTHER_ACCOUNT, True, id="a package"),
        pytest.param(
            "s3:GetObject",
            f"arn:aws:s3:::al2023-repos-{REGION}-evil/x",
            OTHER_ACCOUNT,
            OTHER_ACCOUNT,
            False,
            id="a like name",
        ),
        pytest.param("s3:PutObject", LAYER, OTHER_ACCOUNT, OTHER_ACCOUNT, False, id="nothing is written there"),
    ],
)
def test_s3_is_reachable_only_in_our_account(  # noqa: PLR0913
    tmp_path: Path, action: str, resource: str, principal: str, owner: str, passes: bool
) -> None:
    assert allowed(policies(tmp_path)["s3"], action, resource, by(principal, owner)) is passes


def test_every_endpoint_allows_only_our_identities(tmp_path: Path) -> None:
    found = policies(tmp_path, {"network.private_services": sorted(ENDPOINTS)})
    assert set(found) == {"s3", *ENDPOINTS}
    for name, its in found.items():
        assert not allowed(its, "sqs:SendMessage", "arn:aws:sqs:x:y:z", by(OTHER_ACCOUNT, OTHER_ACCOUNT)), name
        assert not allowed(its, "sqs:SendMessage", "arn:aws:sqs:x:y:z", by(OTHER_ACCOUNT, None)), name
        if name != "s3":
            assert allowed(its, "ec2:DescribeInstances", "*", by(ACCOUNT, None)), name
            assert allowed(its, "sqs:SendMessage", "arn:aws:sqs:x:y:z", by(ACCOUNT, ACCOUNT)), name
    for name in ("sqs", "logs", "secretsmanager", "kms", "events"):
        assert not allowed(found[name], "sqs:SendMessage", "arn:aws:sqs:x:y:z", by(ACCOUNT, OTHER_ACCOUNT)), name
    shared = "arn:aws:ec2:x:999999999999:capacity-reservation/cr-0"
    assert allowed(found["ec2"], "ec2:GetCapacityReservationUsage", shared, by(ACCOUNT, OTHER_ACCOUNT))


def test_with_nat_the_s3_endpoint_has_no_policy(tmp_path: Path) -> None:
    recording = declared(changed(AWS, {"network.internet": "nat"}), "aws-prod", tmp_path)
    (s3,) = [one for one in recording.of_type(ENDPOINT) if one.inputs["serviceName"].endswith(".s3")]
    assert s3.inputs.get("policy") is None


@pytest.mark.parametrize("setting", ["machines.dcgm_image", "machines.gate_image"])
def test_images_come_only_from_registries_in_the_settings(tmp_path: Path, setting: str) -> None:
    central = "444455556666"
    image = f"{central}.dkr.ecr.{REGION}.amazonaws.com/image@sha256:{'0' * 64}"
    found = policies(tmp_path, {setting: image})
    for name in ("ecr.api", "ecr.dkr"):
        for owner, passes in ((ACCOUNT, True), (central, True), (OTHER_ACCOUNT, False)):
            assert allowed(found[name], "ecr:BatchGetImage", "arn:aws:ecr:x", by(ACCOUNT, owner)) is passes


def test_services_that_the_settings_know_are_those_with_a_policy() -> None:
    assert set(ENDPOINTS) == WITH_POLICY
