"""The bucket of an environment: models, agents and the fleet document."""

from pathlib import Path

import pulumi
from pulumi_aws import s3


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
