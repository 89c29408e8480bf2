"""The bucket of an environment: models, agents and the fleet document."""

import json
from collections.abc import Mapping
from pathlib import Path

import pulumi
from pulumi_aws import s3


class ModelBucket(pulumi.ComponentResource):
    """Versioned, encrypted, closed to the public, TLS only. Kept by `pulumi destroy` until somebody unprotects it."""

    bucket_name: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        bucket_name: str,
        tags: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:aws:ModelBucket", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        bucket = s3.Bucket(
            name,
            bucket=bucket_name,
            tags=dict(tags),
            # hours of uploads lie in it, and the records of what was served
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
            policy=_tls_only(bucket_name),
            # S3 refuses two changes of a bucket's access at the same time
            opts=pulumi.ResourceOptions(parent=self, depends_on=[closed]),
        )
        self.bucket_name = bucket.bucket
        self.register_outputs({"bucketName": self.bucket_name})


def put_file(
    name: str, bucket: pulumi.Input[str], key: str, path: Path, opts: pulumi.ResourceOptions | None = None
) -> s3.BucketObjectv2:
    """Upload a file whose key holds its digest, so that it never changes under that key."""
    return s3.BucketObjectv2(name, bucket=bucket, key=key, source=pulumi.FileAsset(str(path)), opts=opts)


def put_text(  # noqa: PLR0913
    name: str,
    bucket: pulumi.Input[str],
    key: str,
    text: pulumi.Input[str],
    content_type: str,
    opts: pulumi.ResourceOptions | None = None,
) -> s3.BucketObjectv2:
    """Write a small document."""
    return s3.BucketObjectv2(name, bucket=bucket, key=key, content=text, content_type=content_type, opts=opts)


def _encrypted() -> s3.BucketServerSideEncryptionConfigurationRuleArgs:
    return s3.BucketServerSideEncryptionConfigurationRuleArgs(
        apply_server_side_encryption_by_default=s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs(
            sse_algorithm="aws:kms"
        ),
        # one data key per bucket instead of one per object: KMS is paid per call
        bucket_key_enabled=True,
    )


def _tls_only(bucket_name: str) -> str:
    statement = {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{bucket_name}", f"arn:aws:s3:::{bucket_name}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, sort_keys=True)
