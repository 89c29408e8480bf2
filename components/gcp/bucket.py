"""The bucket of an environment: models, agents and the fleet document."""

from collections.abc import Mapping
from pathlib import Path

import pulumi
from pulumi_gcp import storage


class ModelBucket(pulumi.ComponentResource):
    """A versioned, private bucket with uniform access. `pulumi destroy` keeps it until an operator unprotects it."""

    bucket_name: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        bucket_name: str,
        region: str,
        labels: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:gcp:ModelBucket", name, None, opts)
        bucket = storage.Bucket(
            name,
            name=bucket_name,
            location=region.upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            versioning=storage.BucketVersioningArgs(enabled=True),
            labels=dict(labels),
            # the bucket holds hours of uploads and the usage records
            opts=pulumi.ResourceOptions(parent=self, protect=True),
        )
        self.bucket_name = bucket.name
        self.register_outputs({"bucketName": self.bucket_name})


def put_file(
    name: str, bucket: pulumi.Input[str], key: str, path: Path, opts: pulumi.ResourceOptions | None = None
) -> storage.BucketObject:
    """Upload a file. Its key contains its digest, so the content under a key never changes."""
    return storage.BucketObject(name, bucket=bucket, name=key, source=pulumi.FileAsset(str(path)), opts=opts)


def put_text(  # noqa: PLR0913
    name: str,
    bucket: pulumi.Input[str],
    key: str,
    text: pulumi.Input[str],
    content_type: str,
    opts: pulumi.ResourceOptions | None = None,
) -> storage.BucketObject:
    """Write a small text object."""
    return storage.BucketObject(name, bucket=bucket, name=key, content=text, content_type=content_type, opts=opts)
