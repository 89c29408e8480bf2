"""Tests of buckets and queues: public access and missing encryption."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from gpufleet.settings.environment import PolicyException
from policies import storage
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies.resources import DEV

(RULE,) = storage.RULES
BUCKET, BLOCK = "aws:s3/bucket:Bucket", "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
VERSIONING, OBJECT = "aws:s3/bucketVersioning:BucketVersioning", "aws:s3/bucketObjectv2:BucketObjectv2"
QUEUE, GCP_BUCKET, GCP_OBJECT = (
    "aws:sqs/queue:Queue",
    "gcp:storage/bucket:Bucket",
    "gcp:storage/bucketObject:BucketObject",
)
SHUT = dict.fromkeys(("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"), True)
ALL = "http://acs.amazonaws.com/groups/global/AllUsers"
CLOSED: dict[str, Any] = {"publicAccessPrevention": "enforced", "uniformBucketLevelAccess": True}


def encrypted(algorithm: Any) -> dict[str, Any]:
    return {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": algorithm}}]}


def paths(kind: str, props: dict[str, Any]) -> list[str]:
    return [v.path for v in RULE.check([Resource(type=kind, name="it", urn="urn:it", props=props)], DEV)]


@pytest.mark.parametrize(
    ("kind", "props", "path"),
    [
        pytest.param(BLOCK, dict.fromkeys(SHUT, False), "blockPublicAcls", id="nothing blocked"),
        *(pytest.param(BLOCK, {**SHUT, key: value}, key, id=f"{key} {value}")
          for key, value in zip(SHUT, (False, None, UNKNOWN, "false"), strict=True)),
        pytest.param("aws:s3/accountPublicAccessBlock:AccountPublicAccessBlock", {}, "blockPublicAcls", id="account"),
        pytest.param("aws:s3/bucketAcl:BucketAcl", {"acl": "public-read-write"}, "acl", id="public list"),
        pytest.param(BUCKET, {"grants": [{"type": "Group", "uri": ALL}]}, "grants", id="grants for everybody"),
        pytest.param(OBJECT, {"acl": "public-read"}, "acl", id="public object"),
        pytest.param(OBJECT, {"acl": "authenticated-read"}, "acl", id="object for every account of AWS"),
        pytest.param(ENCRYPTION, {"rules": []}, "rules", id="no algorithm"),
        pytest.param(ENCRYPTION, encrypted(UNKNOWN), "rules[0].applyServerSideEncryptionByDefault.sseAlgorithm",
                     id="unknown algorithm"),
        pytest.param(VERSIONING, {"versioningConfiguration": {"status": "Suspended"}},
                     "versioningConfiguration.status", id="no versions"),
        pytest.param(QUEUE, {"sqsManagedSseEnabled": False}, "sqsManagedSseEnabled", id="queue in clear"),
        pytest.param(QUEUE, {"sqsManagedSseEnabled": UNKNOWN}, "sqsManagedSseEnabled", id="unknown queue"),
        pytest.param(GCP_BUCKET, {**CLOSED, "publicAccessPrevention": "inherited"}, "publicAccessPrevention",
                     id="inherited prevention"),
        pytest.param(GCP_BUCKET, {"uniformBucketLevelAccess": True}, "publicAccessPrevention", id="no prevention"),
        pytest.param(GCP_BUCKET, {**CLOSED, "uniformBucketLevelAccess": UNKNOWN}, "uniformBucketLevelAccess",
                     id="unknown lists of objects"),
        pytest.param(GCP_BUCKET, {**CLOSED, "versioning": {"enabled": False}}, "versioning.enabled",
                     id="no versions, Google"),
        pytest.param(GCP_OBJECT, {"predefinedAcl": "publicRead"}, "predefinedAcl", id="public object, Google"),
        pytest.param("gcp:storage/bucketACL:BucketACL", {"predefinedAcl": "publicReadWrite"}, "predefinedAcl",
                     id="public bucket, Google"),
    ],
)  # fmt: skip
def test_public_or_unencrypted_storage_is_refused_with_its_property(
    kind: str, props: dict[str, Any], path: str
) -> None:
    assert path in paths(kind, props)


@pytest.mark.parametrize(
    ("kind", "props"),
    [
        pytest.param(BLOCK, SHUT, id="blocked"),
        pytest.param(OBJECT, {"acl": "private"}, id="private object"),
        pytest.param(ENCRYPTION, encrypted("aws:kms"), id="encrypted"),
        pytest.param(QUEUE, {}, id="queue, encrypted by default"),
        pytest.param(QUEUE, {"sqsManagedSseEnabled": False, "kmsMasterKeyId": UNKNOWN}, id="queue with a key"),
        pytest.param(GCP_BUCKET, CLOSED, id="Google bucket"),
        pytest.param(GCP_OBJECT, {}, id="Google object"),
    ],
)
def test_private_and_encrypted_storage_passes(kind: str, props: dict[str, Any]) -> None:
    assert paths(kind, props) == []


@pytest.mark.parametrize(
    ("block", "refused"),
    [
        pytest.param(None, True, id="no block"),
        pytest.param(
            {"props": {"bucket": UNKNOWN}, "depends": {"bucket": ("urn:bucket",)}}, False, id="of its output"
        ),
        pytest.param({"props": {"bucket": "models"}}, False, id="of its name"),
        pytest.param({"props": {"bucket": "others"}}, True, id="of another"),
    ],
)
def test_each_bucket_of_a_plan_has_its_block(block: dict[str, Any] | None, refused: bool) -> None:
    plan = [Resource(type=BUCKET, name="bucket", urn="urn:bucket", props={"bucket": "models"})]
    if block is not None:
        props = {**SHUT, **block["props"]}
        plan.append(Resource(type=BLOCK, name="b", urn="urn:b", props=props, depends=block.get("depends", {})))
    assert bool(RULE.check(plan, DEV)) == refused


def test_an_excepted_bucket_needs_no_public_access_block() -> None:
    plan = [Resource(type=BUCKET, name="reports", urn="urn:reports")]
    waived = PolicyException(
        rule="resource-type-listed",
        type=BUCKET,
        resource="reports",
        owner="ann",
        reason="audit",
        until=date(2027, 1, 1),
    )
    assert RULE.check(plan, replace(DEV, exceptions=(waived,))) == []
    assert RULE.check(plan, replace(DEV, exceptions=(waived,), today=date(2027, 1, 2))) != []
