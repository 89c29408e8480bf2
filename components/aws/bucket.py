"""The bucket of an environment: models, agents and the fleet document."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pulumi
from pulumi_aws import s3

from gpufleet.domain.bucket import PUBLISHED

_WRITING: Final = ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObject")


class ModelBucket(pulumi.ComponentResource):
    """A versioned, encrypted, private bucket that accepts TLS only. Machines cannot write the files that control
    them.

    `machines` are ARN patterns of the machines' roles. `publishers` are ARN patterns of the only identities that may
    write the files that control machines; if empty, any identity that has the permission and is not a machine may
    write them. `pulumi destroy` keeps the bucket until an operator unprotects it.
    """

    bucket_name: pulumi.Output[str]

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        bucket_name: str,
        tags: Mapping[str, str],
        machines: Sequence[str],
        publishers: Sequence[str] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:aws:ModelBucket", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        bucket = s3.Bucket(
            name,
            bucket=bucket_name,
            tags=dict(tags),
            # the bucket holds hours of uploads and the usage records
            opts=pulumi.ResourceOptions(parent=self, protect=True),
        )
        s3.BucketVersioning(
            name,
            bucket=bucket.bucket,
            versioning_configuration=s3.BucketVersioningVersioningConfigurationArgs(status="Enabled"),
            opts=child,
        )
        s3.BucketServerSideEncryptionConfiguration(name, bucket=bucket.bucket, rules=[_encrypted()], opts=child)
        closed = s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child,
        )
        s3.BucketPolicy(
            name,
            bucket=bucket.bucket,
            policy=bucket_policy(bucket_name, machines, publishers),
            # S3 refuses two concurrent changes of a bucket's access settings
            opts=pulumi.ResourceOptions(parent=self, depends_on=[closed]),
        )
        self.bucket_name = bucket.bucket
        self.register_outputs({"bucketName": self.bucket_name})


def put_file(
    name: str, bucket: pulumi.Input[str], key: str, path: Path, opts: pulumi.ResourceOptions | None = None
) -> s3.BucketObjectv2:
    """Upload a file. Its key contains its digest, so the content under a key never changes."""
    return s3.BucketObjectv2(name, bucket=bucket, key=key, source=pulumi.FileAsset(str(path)), opts=opts)


def put_text(  # noqa: PLR0913
    name: str,
    bucket: pulumi.Input[str],
    key: str,
    text: pulumi.Input[str],
    content_type: str,
    opts: pulumi.ResourceOptions | None = None,
) -> s3.BucketObjectv2:
    """Write a small text object."""
    return s3.BucketObjectv2(name, bucket=bucket, key=key, content=text, content_type=content_type, opts=opts)


def _encrypted() -> s3.BucketServerSideEncryptionConfigurationRuleArgs:
    return s3.BucketServerSideEncryptionConfigurationRuleArgs(
        apply_server_side_encryption_by_default=s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs(
            sse_algorithm="aws:kms"
        ),
        # one data key per bucket instead of one per object, because each KMS call is billed
        bucket_key_enabled=True,
    )


def bucket_policy(bucket_name: str, machines: Sequence[str], publishers: Sequence[str] = ()) -> str:
    """Return the bucket policy. It contains only denials; the roles contain the permissions."""
    whole = f"arn:aws:s3:::{bucket_name}"
    published = [f"{whole}/{prefix}*" for prefix in PUBLISHED]
    statements = [
        _denied("TlsOnly", "s3:*", [whole, f"{whole}/*"], {"Bool": {"aws:SecureTransport": "false"}}),
        # applies even if a role is granted too many permissions later
        _denied("NoMachinePublishes", _WRITING, published, {"ArnLike": {"aws:PrincipalArn": list(machines)}}),
    ]
    if publishers:
        others = {"ArnNotLike": {"aws:PrincipalArn": list(publishers)}}
        statements.append(_denied("OnlyPublishersPublish", _WRITING, published, others))
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def _denied(
    sid: str, actions: str | Sequence[str], resources: Sequence[str], when: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Deny",
        "Principal": "*",
        "Action": actions if isinstance(actions, str) else list(actions),
        "Resource": list(resources),
        "Condition": when,
    }
