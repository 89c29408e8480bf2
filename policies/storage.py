"""The rule on buckets, queues and their objects: they must be private and encrypted."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gpufleet.domain.parsed import is_list
from policies.context import Context
from policies.resource import UNKNOWN, Resource, is_false, is_true
from policies.resource_types import is_excepted
from policies.rule import PropertyProblem, Rule, Violation

_BUCKETS: Final = frozenset({"aws:s3/bucket:Bucket", "aws:s3/bucketV2:BucketV2"})
_BLOCK: Final = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
_BLOCKS: Final = frozenset({_BLOCK, "aws:s3/accountPublicAccessBlock:AccountPublicAccessBlock"})
_SHUT: Final = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
_WITH_ACL: Final = frozenset(
    {
        *_BUCKETS,
        "aws:s3/bucketAcl:BucketAcl",
        "aws:s3/bucketAclV2:BucketAclV2",
        "aws:s3/bucketObject:BucketObject",
        "aws:s3/bucketObjectv2:BucketObjectv2",
        "aws:s3/objectCopy:ObjectCopy",
    }
)
_PRIVATE: Final = (None, "", "private", "bucket-owner-read", "bucket-owner-full-control", "log-delivery-write")
_ENCRYPTION: Final = frozenset(
    f"aws:s3/bucketServerSideEncryptionConfiguration{v}:BucketServerSideEncryptionConfiguration{v}"
    for v in ("", "V2")
)
_ALGORITHMS: Final = ("aws:kms", "aws:kms:dsse", "AES256")
_VERSIONING: Final = frozenset(f"aws:s3/bucketVersioning{v}:BucketVersioning{v}" for v in ("", "V2"))
_QUEUE: Final = "aws:sqs/queue:Queue"
_GCP_BUCKET: Final = "gcp:storage/bucket:Bucket"
_GCP_WITH_ACL: Final = frozenset(
    {
        "gcp:storage/bucketACL:BucketACL",
        "gcp:storage/bucketObject:BucketObject",
        "gcp:storage/defaultObjectACL:DefaultObjectACL",
        "gcp:storage/objectACL:ObjectACL",
    }
)
_GCP_PRIVATE: Final = (
    *(None, "", "private", "projectPrivate"),
    *("bucketOwnerFullControl", "bucketOwnerRead"),
)


_OBJECTS: Final = {"aws:s3/bucketObjectv2:BucketObjectv2": "key", "gcp:storage/bucketObject:BucketObject": "name"}
"""Types of objects that the program creates, with the property that contains the object's name."""
_WRITTEN: Final = re.compile(r"fleet/fleet\.json|agents/[0-9a-f]{64}/gpufleet-node\.pyz")
"""All objects that the program writes: `PATH_IN_BUCKET` and `archive_key`."""


def _open_storage(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    if resource.type in _WITH_ACL and (acl := resource.at("acl")) not in _PRIVATE:
        yield PropertyProblem(path="acl", value=acl, message="must be private")
    if resource.type in _GCP_WITH_ACL and (acl := resource.at("predefinedAcl")) not in _GCP_PRIVATE:
        yield PropertyProblem(path="predefinedAcl", value=acl, message="must be private")
    if resource.type in _BUCKETS and (grants := resource.at("grants")) not in (None, []):
        yield PropertyProblem(path="grants", value=grants, message="must be left out; use roles and policies instead")
    if resource.type in _BUCKETS and (copied := resource.at("replicationConfiguration")) not in (None, {}):
        yield PropertyProblem(
            path="replicationConfiguration", value=copied, message="must be left out, because it copies all objects"
        )
    if (key := _OBJECTS.get(resource.type)) is not None and not is_excepted(resource, context):
        name = resource.at(key)
        if not (name is None or (isinstance(name, str) and _WRITTEN.fullmatch(name))):
            yield PropertyProblem(
                path=key,
                value=name,
                message="must be the fleet document or a node agent, because machines use other objects",
            )
    judge = _JUDGES.get(resource.type)
    if judge is not None:
        yield from judge(resource)


def _block(block: Resource) -> Iterator[PropertyProblem]:
    for key in _SHUT:
        if not is_true(value := block.at(key)):
            yield PropertyProblem(path=key, value=value, message="must be true")


def _versioning(versioning: Resource) -> Iterator[PropertyProblem]:
    status = versioning.at("versioningConfiguration", "status")
    if status != "Enabled":
        yield PropertyProblem(
            path="versioningConfiguration.status",
            value=status,
            message="must be Enabled, so that earlier versions can be restored",
        )


def _queue(queue: Resource) -> Iterator[PropertyProblem]:
    managed, key = queue.at("sqsManagedSseEnabled"), queue.at("kmsMasterKeyId")
    if (managed is UNKNOWN or is_false(managed)) and key in (None, ""):
        yield PropertyProblem(
            path="sqsManagedSseEnabled", value=managed, message="must be true, or kmsMasterKeyId must be set"
        )


def _default_encryption(resource: Resource) -> Iterator[PropertyProblem]:
    rules = resource.at("rules")
    if not is_list(rules) or not rules:
        yield PropertyProblem(path="rules", value=rules, message="must name an algorithm")
        return
    for index in range(len(rules)):
        algorithm = resource.at("rules", index, "applyServerSideEncryptionByDefault", "sseAlgorithm")
        if algorithm not in _ALGORITHMS:
            path = f"rules[{index}].applyServerSideEncryptionByDefault.sseAlgorithm"
            yield PropertyProblem(path=path, value=algorithm, message=f"must be one of {', '.join(_ALGORITHMS)}")


def _google_bucket(bucket: Resource) -> Iterator[PropertyProblem]:
    prevention = bucket.at("publicAccessPrevention")
    if prevention != "enforced":
        yield PropertyProblem(
            path="publicAccessPrevention", value=prevention, message="must be enforced, not inherited"
        )
    if not is_true(uniform := bucket.at("uniformBucketLevelAccess")):
        yield PropertyProblem(
            path="uniformBucketLevelAccess",
            value=uniform,
            message="must be true; otherwise objects have their own access lists",
        )
    if not ((kept := bucket.at("versioning", "enabled")) is None or is_true(kept)):
        yield PropertyProblem(
            path="versioning.enabled", value=kept, message="must be true, so that earlier versions can be restored"
        )


_JUDGES: Final[Mapping[str, Callable[[Resource], Iterator[PropertyProblem]]]] = {
    **dict.fromkeys(_BLOCKS, _block),
    **dict.fromkeys(_ENCRYPTION, _default_encryption),
    **dict.fromkeys(_VERSIONING, _versioning),
    _QUEUE: _queue,
    _GCP_BUCKET: _google_bucket,
}


def _not_blocked(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    """Yield AWS buckets without a public access block in the plan."""
    blocks = [resource for resource in resources if resource.type == _BLOCK]
    urns = {urn for block in blocks for urn in block.depends.get("bucket", ())}
    names = {name for block in blocks if isinstance(name := block.at("bucket"), str)}
    for bucket in resources:
        name = bucket.at("bucket")
        is_blocked = bucket.urn in urns or (isinstance(name, str) and name in names)
        # an exception that names the bucket is the operator's decision, and S3 blocks public access to new buckets by
        # default
        if bucket.type in _BUCKETS and not is_blocked and not is_excepted(bucket, context):
            wrong = "the plan must contain a BucketPublicAccessBlock for it, with all four properties true"
            yield PropertyProblem(message=wrong).on(bucket)


RULES: Final = (
    Rule(
        id="storage-closed",
        reason="A bucket contains what engines run and what clients asked; one access list entry can make it public.",
        remedy="Block public access in all four ways on AWS, and enforce public access prevention on Google Cloud.",
        check_resource=_open_storage,
        check_plan=_not_blocked,
        judges=(
            "public access blocks, access lists, encryption, versions and replication of buckets; names of objects; "
            "queues. A bucket with an exception of resource-type-listed needs no public access block in the plan, "
            "because S3 blocks public access to each new bucket"
        ),
    ),
)
