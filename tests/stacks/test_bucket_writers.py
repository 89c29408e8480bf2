"""Tests that machines cannot write the files that control machines. Checks each role in the generated policy
documents.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.bucket import PUBLISHED
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.iam import allowed, denied, google_allows, statements
from tests.fixtures.stacks.declared import declared
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, changed, problems

DOCUMENTS = (
    "fleet/fleet.json",
    "fleet/router.json",
    "models/chat/served.json",
    "models/chat/history.json",
    f"models/chat/{'a' * 64}/manifest.json",
    f"models/chat/{'a' * 64}/files/model.safetensors",
    f"models/chat/{'a' * 64}/approved.json",
    f"approvals/chat/{'a' * 64}.json",
    f"agents/{'a' * 64}/gpufleet-node.pyz",
    f"control/{'a' * 64}.tar.gz",
)
"""Objects that control machines."""
WRITING = ("s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion")
ACCOUNT = AWS[FLEET]["account"]
BUCKET = AWS[FLEET]["bucket"]["name"]
PERSON = f"arn:aws:iam::{ACCOUNT}:role/deployer"
BACKUP = "backups/ledger/aws-prod-us-east-1/20261125T000000Z.jsonl.gz"
POINTER = "backups/ledger/aws-prod-us-east-1/latest.json"


def roles_of_machines(recording: RecordingMocks) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the ARN and the statements of each role that an EC2 machine assumes."""
    for role in recording.of_type("aws:iam/role:Role"):
        if "ec2.amazonaws.com" in role.inputs["assumeRolePolicy"]:
            name = f"{role.name}-3f2a"
            policies = [
                one.inputs["policy"]
                for one in recording.of_type("aws:iam/rolePolicy:RolePolicy")
                if one.inputs["role"] == name
            ]
            assert policies, f"{name} has no policy"
            yield f"arn:aws:iam::{ACCOUNT}:role/{name}", statements(*policies)


def policy_of_bucket(recording: RecordingMocks) -> list[Mapping[str, Any]]:
    (policy,) = recording.of_type("aws:s3/bucketPolicy:BucketPolicy")
    return statements(policy.inputs["policy"])


def by(arn: str) -> dict[str, str]:
    return {"aws:PrincipalArn": arn, "aws:SecureTransport": "true"}


def at(key: str) -> str:
    return f"arn:aws:s3:::{BUCKET}/{key}"


EVERYTHING: Mapping[str, Any] = {"Effect": "Allow", "Action": "*", "Resource": "*"}
"""A permission that an administrator might grant to a role by mistake."""


@pytest.mark.parametrize("routers", [1, 3])
def test_no_aws_machine_may_write_files_that_control_machines(routers: int, tmp_path: Path) -> None:
    recording = declared(changed(AWS, {"control.routers": routers}), "aws-prod", tmp_path)
    policy, machines = policy_of_bucket(recording), list(roles_of_machines(recording))
    assert len(machines) >= 2
    for arn, its in machines:
        for action in WRITING:
            for key in DOCUMENTS:
                assert not allowed(its, action, at(key), by(arn)), f"{arn} {action} {key}"
                assert denied(policy, action, at(key), by(arn)), f"only its role keeps {arn} from {action} {key}"


def test_every_published_prefix_has_a_document_here() -> None:
    assert {key.partition("/")[0] + "/" for key in DOCUMENTS} == set(PUBLISHED)


def test_the_control_host_writes_backups_and_cannot_remove_them(tmp_path: Path) -> None:
    recording = declared(AWS, "aws-prod", tmp_path)
    policy = policy_of_bucket(recording)
    arn, its = next(found for found in roles_of_machines(recording) if "-control-" in found[0])
    for key in (BACKUP, POINTER):
        assert allowed([*its, *policy], "s3:PutObject", at(key), by(arn))
        for action in ("s3:DeleteObject", "s3:DeleteObjectVersion"):
            assert not allowed(its, action, at(key), by(arn))
    for key in ("fleet/fleet.json", "fleet/router.json", f"control/{'a' * 64}.tar.gz", POINTER, BACKUP):
        assert allowed([*its, *policy], "s3:GetObject", at(key), by(arn))
    weights = f"models/chat/{'a' * 64}/files/model.safetensors"
    assert not allowed(its, "s3:GetObject", at(weights), by(arn)), "it serves no model"


def test_operators_have_access_by_default(tmp_path: Path) -> None:
    policy = policy_of_bucket(declared(AWS, "aws-prod", tmp_path))
    for action in WRITING:
        for key in DOCUMENTS:
            assert allowed([*policy, EVERYTHING], action, at(key), by(PERSON))


def test_only_named_publishers_may_publish(tmp_path: Path) -> None:
    publishers = [PERSON, f"arn:aws:iam::{ACCOUNT}:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Models_*"]
    recording = declared(changed(AWS, {"bucket.publishers": publishers}), "aws-prod", tmp_path)
    policy = policy_of_bucket(recording)
    through_sso = (
        f"arn:aws:iam::{ACCOUNT}:role/aws-reserved/sso.amazonaws.com/eu-west-1/AWSReservedSSO_Models_0123456789abcdef"
    )
    other = f"arn:aws:iam::{ACCOUNT}:role/other"
    for key in DOCUMENTS:
        for arn, may in ((PERSON, True), (through_sso, True), (other, False)):
            assert allowed([*policy, EVERYTHING], "s3:PutObject", at(key), by(arn)) is may, f"{arn} {key}"
    assert allowed([*policy, EVERYTHING], "s3:PutObject", at(BACKUP), by(other)), "backups are not documents"


def test_a_machine_that_matches_publishers_is_denied(tmp_path: Path) -> None:
    publishers = [f"arn:aws:iam::{ACCOUNT}:role/g*"]
    recording = declared(changed(AWS, {"bucket.publishers": publishers}), "aws-prod", tmp_path)
    policy = policy_of_bucket(recording)
    for arn, _ in roles_of_machines(recording):
        assert denied(policy, "s3:PutObject", at("fleet/fleet.json"), by(arn))


@pytest.mark.parametrize(
    ("config", "changes", "wrong"),
    [
        pytest.param(GCP, {"bucket.publishers": [PERSON]}, "is only for AWS", id="Google Cloud"),
        pytest.param(
            AWS,
            {"bucket.publishers": [PERSON], "bucket.existing": True},
            "a bucket that the program creates",
            id="given",
        ),
        pytest.param(
            AWS,
            {"bucket.publishers": ["arn:aws:iam::999999999999:role/x"]},
            "does not contain a role of account",
            id="locked out",
        ),
        pytest.param(AWS, {"bucket.publishers": [f"arn:aws:iam::{ACCOUNT}:role/*"]}, "publishers", id="everybody"),
        pytest.param(AWS, {"bucket.publishers": ["arn:aws:iam::*:role/x"]}, "publishers", id="any account"),
        pytest.param(AWS, {"bucket.publishers": ["deployer"]}, "publishers", id="a name"),
    ],
)
def test_publishers_that_are_refused(config: dict[str, Any], changes: dict[str, Any], wrong: str) -> None:
    assert any(wrong in problem for problem in problems(changed(config, changes))), problems(changed(config, changes))


@pytest.mark.parametrize("routers", [1, 3])
def test_no_google_machine_may_write_control_files_or_remove_a_backup(routers: int, tmp_path: Path) -> None:
    recording = declared(changed(GCP, {"control.routers": routers}), "gcp-prod", tmp_path)
    bucket = GCP[FLEET]["bucket"]["name"]
    members: dict[str, list[Mapping[str, Any]]] = {}
    for one in recording.of_type("gcp:storage/bucketIAMMember:BucketIAMMember"):
        members.setdefault(json.dumps(one.inputs["member"]), []).append(one.inputs)
    assert members
    for member, rights in members.items():
        for permission in ("create", "update", "delete"):
            for key in DOCUMENTS:
                assert not google_allows(rights, permission, bucket, key), f"{member} {permission} {key}"
        for permission in ("update", "delete"):
            assert not google_allows(rights, permission, bucket, BACKUP), f"{member} {permission} {BACKUP}"
    writers = [rights for rights in members.values() if google_allows(rights, "create", bucket, BACKUP)]
    (control,) = writers
    assert google_allows(control, "delete", bucket, POINTER), "the pointer is replaced by each backup"
    assert all(google_allows(control, "get", bucket, key) for key in ("fleet/fleet.json", BACKUP, POINTER))


def test_an_external_bucket_gets_no_policy(tmp_path: Path) -> None:
    recording = declared(changed(AWS, {"bucket.existing": True}), "aws-prod", tmp_path)
    assert not recording.of_type("aws:s3/bucketPolicy:BucketPolicy")
