"""S3 buckets, their settings and objects."""

from __future__ import annotations

from typing import Any, ClassVar

from localcloud.aws.sdk import ClientError
from localcloud.documents import inner
from localcloud.provider.aws.calls import error_code, is_absent, or_none, present
from localcloud.provider.aws.tags import tag_list, tag_map
from localcloud.provider.checks import conflicts, matches, one_of
from localcloud.provider.errors import ProviderError
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import from_answer, input_shape, to_request
from localcloud.provider.wire import Properties, asset_bytes, decode_base64

_BUCKET_NAME = r"(?!xn--|sthree-)(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_NAMING = Naming(property="bucket", prefix_property="bucketPrefix", limit=63, lower=True)
_NOT_SET = ("NoSuchTagSet", "NoSuchBucketPolicy", "ConfigurationNotFound", "ConfigurationNotFoundError")


class Bucket(Resource):
    token = "aws:s3/bucket:Bucket"
    naming = _NAMING
    tagged = True
    force_new = frozenset({"bucket", "bucketPrefix", "objectLockEnabled"})
    mutable = frozenset({"forceDestroy"})
    rules = (
        conflicts("bucket", "bucketPrefix"),
        matches("bucket", _BUCKET_NAME, "a bucket name (3 to 63 of a-z 0-9 . -, starting and ending with a-z 0-9)"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _NAMING.from_prefix(inputs)
        request: Properties = {"Bucket": name}
        if cloud.region != "us-east-1":  # S3 refuses this very name as a location
            request["CreateBucketConfiguration"] = {"LocationConstraint": cloud.region}
        if "objectLockEnabled" in inputs:
            request["ObjectLockEnabledForBucket"] = inputs["objectLockEnabled"]
        cloud.client("s3").create_bucket(**request)
        return name

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        self._set_tags(cloud, ident, inputs.get("tags"))

    def _set_tags(self, cloud: Cloud, ident: str, tags: dict[str, str] | None) -> None:
        if tags:
            cloud.client("s3").put_bucket_tagging(Bucket=ident, Tagging={"TagSet": tag_list(tags)})
        else:
            cloud.client("s3").delete_bucket_tagging(Bucket=ident)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        s3 = cloud.client("s3")
        if or_none(s3.head_bucket, Bucket=ident) is None:
            return None
        tags = _setting(s3.get_bucket_tagging, "TagSet", Bucket=ident)
        return {
            "arn": f"arn:aws:s3:::{ident}",
            "bucket": ident,
            "bucketDomainName": f"{ident}.s3.amazonaws.com",
            "bucketRegion": cloud.region,
            "bucketRegionalDomainName": f"{ident}.s3.{cloud.region}.amazonaws.com",
            "tags": tag_map(cloud, tags),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.touches("tags"):
            self._set_tags(cloud, ident, change.new.get("tags"))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        s3 = cloud.client("s3")
        if state.get("forceDestroy") and or_none(s3.head_bucket, Bucket=ident) is not None:
            _empty(s3, ident)
        try:
            or_none(s3.delete_bucket, Bucket=ident)
        except ClientError as error:
            if error_code(error) != "BucketNotEmpty":
                raise
            raise ProviderError(f"bucket {ident} is not empty; empty it, or set forceDestroy and run `up`") from error


def _setting(call: Any, key: str, **arguments: Any) -> Any:
    """One setting of a bucket; None if it was never set."""
    try:
        return call(**arguments).get(key)
    except ClientError as error:
        if is_absent(error) or any(word in error_code(error) for word in _NOT_SET):
            return None
        raise


def _empty(s3: Any, bucket: str, key: str | None = None) -> None:
    """End every version of one object, or of all."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, **present(Prefix=key))
    for page in pages:
        for version in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]:
            if key is None or version["Key"] == key:
                s3.delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])


_CONTENT = frozenset({"content", "contentBase64", "source"})
_HEADERS = {
    "acl": "ACL",
    "bucketKeyEnabled": "BucketKeyEnabled",
    "cacheControl": "CacheControl",
    "contentDisposition": "ContentDisposition",
    "contentEncoding": "ContentEncoding",
    "contentLanguage": "ContentLanguage",
    "contentType": "ContentType",
    "kmsKeyId": "SSEKMSKeyId",
    "metadata": "Metadata",
    "serverSideEncryption": "ServerSideEncryption",
    "storageClass": "StorageClass",
}


class BucketObjectv2(Resource):
    token = "aws:s3/bucketObjectv2:BucketObjectv2"
    naming = Naming(property="key", limit=1024)
    tagged = True
    force_new = frozenset({"bucket", "key"})
    mutable = _CONTENT | frozenset(_HEADERS) | {"etag", "forceDestroy", "sourceHash"}
    volatile = frozenset({"etag", "versionId"})
    enums = {
        "serverSideEncryption": frozenset({"AES256", "aws:kms", "aws:kms:dsse"}),
        "storageClass": frozenset(
            {
                "STANDARD", "REDUCED_REDUNDANCY", "GLACIER", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING",
                "DEEP_ARCHIVE", "OUTPOSTS", "GLACIER_IR", "SNOW", "EXPRESS_ONEZONE", "FSX_OPENZFS",
            }
        ),
    }  # fmt: skip
    rules = (conflicts("source", "content", "contentBase64"), conflicts("etag", "kmsKeyId"))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        headers = {field: inputs[name] for name, field in _HEADERS.items() if name in inputs}
        tags = "&".join(f"{k}={v}" for k, v in sorted(inner(inputs, "tags").items()))
        cloud.client("s3").put_object(
            Bucket=inputs["bucket"],
            Key=inputs["key"],
            Body=_body(cloud, inputs),
            **headers,
            **({"Tagging": tags} if tags else {}),
        )
        return f"{inputs['bucket']}/{inputs['key']}"

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        bucket, _, key = ident.partition("/")
        found = or_none(cloud.client("s3").head_object, Bucket=bucket, Key=key)
        if found is None:
            return None
        tags = _setting(cloud.client("s3").get_object_tagging, "TagSet", Bucket=bucket, Key=key)
        return {
            "arn": f"arn:aws:s3:::{ident}",
            "bucket": bucket,
            "key": key,
            "contentType": found.get("ContentType"),
            "etag": found["ETag"].strip('"'),
            "versionId": found.get("VersionId", ""),
            "tags": tag_map(cloud, tags),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.keys - {"forceDestroy", "tags"}:
            self.create(cloud, change.new)
        elif change.touches("tags"):
            bucket, _, key = ident.partition("/")
            tagging = {"TagSet": tag_list(change.new.get("tags"))}
            cloud.client("s3").put_object_tagging(Bucket=bucket, Key=key, Tagging=tagging)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        bucket, _, key = ident.partition("/")
        if or_none(cloud.client("s3").head_bucket, Bucket=bucket) is not None:
            _empty(cloud.client("s3"), bucket, key)


def _body(cloud: Cloud, inputs: Properties) -> bytes:
    if "source" in inputs:
        return asset_bytes(inputs["source"], cloud.session.root)
    if "contentBase64" in inputs:
        return decode_base64(inputs["contentBase64"], "contentBase64")
    return str(inputs.get("content", "")).encode()


class _BucketSetting(Resource):
    """One setting of a bucket: put, get and delete of S3, with the bucket's name as id."""

    put: ClassVar[str]
    get: ClassVar[str]
    end: ClassVar[str]
    argument: ClassVar[str]
    answer_key: ClassVar[str]
    force_new = frozenset({"bucket"})

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        """The setting as S3 takes it."""
        raise NotImplementedError

    def live(self, answer: Any, state: Properties) -> Properties:
        """The setting as the program gave it, from what S3 answers."""
        raise NotImplementedError

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        getattr(cloud.client("s3"), self.put)(Bucket=inputs["bucket"], **{self.argument: self.body(cloud, inputs)})
        return str(inputs["bucket"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        answer = _setting(getattr(cloud.client("s3"), self.get), self.answer_key, Bucket=ident)
        return None if answer is None else {"bucket": ident, **self.live(answer, state)}

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self.create(cloud, change.new)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(getattr(cloud.client("s3"), self.end), Bucket=ident)


class BucketPublicAccessBlock(_BucketSetting):
    token = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    put, get, end = "put_public_access_block", "get_public_access_block", "delete_public_access_block"
    argument = answer_key = "PublicAccessBlockConfiguration"
    mutable = frozenset(
        {"blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets", "skipDestroy"}
    )

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        return {
            "BlockPublicAcls": inputs.get("blockPublicAcls", False),
            "BlockPublicPolicy": inputs.get("blockPublicPolicy", False),
            "IgnorePublicAcls": inputs.get("ignorePublicAcls", False),
            "RestrictPublicBuckets": inputs.get("restrictPublicBuckets", False),
        }

    def live(self, answer: Any, state: Properties) -> Properties:
        return {
            "blockPublicAcls": answer["BlockPublicAcls"],
            "blockPublicPolicy": answer["BlockPublicPolicy"],
            "ignorePublicAcls": answer["IgnorePublicAcls"],
            "restrictPublicBuckets": answer["RestrictPublicBuckets"],
        }


class BucketVersioning(_BucketSetting):
    token = "aws:s3/bucketVersioning:BucketVersioning"
    put, get = "put_bucket_versioning", "get_bucket_versioning"
    argument, answer_key = "VersioningConfiguration", "Status"
    mutable = frozenset({"versioningConfiguration"})
    enums = {"versioningConfiguration.status": frozenset({"Enabled", "Suspended", "Disabled"})}

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        status = inputs["versioningConfiguration"]["status"]
        return {"Status": status} if status != "Disabled" else {"Status": "Suspended"}

    def live(self, answer: Any, state: Properties) -> Properties:
        return {"versioningConfiguration": {"status": answer}}

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        # versioning cannot be taken away from a bucket, only suspended
        or_none(
            cloud.client("s3").put_bucket_versioning, Bucket=ident, VersioningConfiguration={"Status": "Suspended"}
        )


class BucketServerSideEncryptionConfiguration(_BucketSetting):
    token = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    put, get, end = "put_bucket_encryption", "get_bucket_encryption", "delete_bucket_encryption"
    argument = answer_key = "ServerSideEncryptionConfiguration"
    mutable = frozenset({"rules"})
    enums = {
        "rules[*].applyServerSideEncryptionByDefault.sseAlgorithm": frozenset({"AES256", "aws:kms", "aws:kms:dsse"})
    }
    _renames = {"rules.applyServerSideEncryptionByDefault.kmsMasterKeyId": "KMSMasterKeyID"}

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        shape = input_shape(cloud, "s3", "PutBucketEncryption", self.argument)
        return to_request({"rules": inputs["rules"]}, shape, self._renames)

    def live(self, answer: Any, state: Properties) -> Properties:
        return from_answer({"rules": state.get("rules")}, answer, self._renames) if "rules" in state else {}


class BucketPolicy(_BucketSetting):
    token = "aws:s3/bucketPolicy:BucketPolicy"
    put, get, end = "put_bucket_policy", "get_bucket_policy", "delete_bucket_policy"
    argument = answer_key = "Policy"
    mutable = frozenset({"policy"})

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        return inputs["policy"]

    def live(self, answer: Any, state: Properties) -> Properties:
        return {"policy": answer}


class BucketOwnershipControls(_BucketSetting):
    token = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
    put, get, end = (
        "put_bucket_ownership_controls",
        "get_bucket_ownership_controls",
        "delete_bucket_ownership_controls",
    )
    argument = answer_key = "OwnershipControls"
    mutable = frozenset({"rule"})
    enums = {"rule.objectOwnership": frozenset({"BucketOwnerPreferred", "ObjectWriter", "BucketOwnerEnforced"})}

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        return {"Rules": [{"ObjectOwnership": inputs["rule"]["objectOwnership"]}]}

    def live(self, answer: Any, state: Properties) -> Properties:
        return {"rule": {"objectOwnership": answer["Rules"][0]["ObjectOwnership"]}}


class BucketLifecycleConfiguration(_BucketSetting):
    token = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    put, get, end = (
        "put_bucket_lifecycle_configuration",
        "get_bucket_lifecycle_configuration",
        "delete_bucket_lifecycle",
    )
    argument, answer_key = "LifecycleConfiguration", "Rules"
    mutable = frozenset({"rules"})
    enums = {"rules[*].status": frozenset({"Enabled", "Disabled"})}
    rules = (one_of("rules"),)

    def body(self, cloud: Cloud, inputs: Properties) -> Any:
        shape = input_shape(cloud, "s3", "PutBucketLifecycleConfiguration", self.argument)
        return to_request({"rules": inputs["rules"]}, shape)

    def live(self, answer: Any, state: Properties) -> Properties:
        return from_answer({"rules": state.get("rules")}, {"Rules": answer}) if "rules" in state else {}
