"""KMS keys with their aliases, and ECR repositories."""

from __future__ import annotations

from localcloud.provider.aws.calls import first, or_none, present
from localcloud.provider.aws.iam import is_policy
from localcloud.provider.aws.tags import tag_changes, tag_list, tag_map
from localcloud.provider.checks import between, conflicts, matches
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_DEFAULT_WINDOW_DAYS = 30


class Key(Resource):
    token = "aws:kms/key:Key"
    tagged = True
    force_new = frozenset({"customerMasterKeySpec", "keyUsage", "multiRegion"})
    mutable = frozenset(
        {"deletionWindowInDays", "description", "enableKeyRotation", "isEnabled", "policy", "rotationPeriodInDays"}
    )
    enums = {"keyUsage": frozenset({"ENCRYPT_DECRYPT", "SIGN_VERIFY", "GENERATE_VERIFY_MAC", "KEY_AGREEMENT"})}
    rules = (between("deletionWindowInDays", 7, 30), between("rotationPeriodInDays", 90, 2560), is_policy("policy"))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        tags = [{"TagKey": t["Key"], "TagValue": t["Value"]} for t in tag_list(inputs.get("tags"))]
        answer = cloud.client("kms").create_key(
            Tags=tags,
            **present(
                Description=inputs.get("description"),
                KeySpec=inputs.get("customerMasterKeySpec"),
                KeyUsage=inputs.get("keyUsage"),
                MultiRegion=inputs.get("multiRegion"),
                Policy=inputs.get("policy"),
            ),
        )
        return str(answer["KeyMetadata"]["KeyId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        self._set(cloud, ident, inputs, frozenset(inputs))

    def _set(self, cloud: Cloud, ident: str, inputs: Properties, keys: frozenset[str]) -> None:
        kms = cloud.client("kms")
        if "enableKeyRotation" in keys or "rotationPeriodInDays" in keys:
            if inputs.get("enableKeyRotation"):
                period = present(RotationPeriodInDays=inputs.get("rotationPeriodInDays"))
                kms.enable_key_rotation(KeyId=ident, **period)
            else:
                kms.disable_key_rotation(KeyId=ident)
        if "isEnabled" in keys:
            call = kms.enable_key if inputs.get("isEnabled", True) else kms.disable_key
            call(KeyId=ident)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        kms = cloud.client("kms")
        answer = or_none(kms.describe_key, KeyId=ident)
        if answer is None or answer["KeyMetadata"]["KeyState"] == "PendingDeletion":
            return None
        key = answer["KeyMetadata"]
        tags = kms.list_resource_tags(KeyId=ident)["Tags"]
        return {
            "arn": key["Arn"],
            "keyId": key["KeyId"],
            "customerMasterKeySpec": key.get("KeySpec"),
            "description": key.get("Description", ""),
            "enableKeyRotation": kms.get_key_rotation_status(KeyId=ident)["KeyRotationEnabled"],
            "isEnabled": key["Enabled"],
            "keyUsage": key.get("KeyUsage", "ENCRYPT_DECRYPT"),
            "multiRegion": key.get("MultiRegion", False),
            "policy": kms.get_key_policy(KeyId=ident, PolicyName="default")["Policy"],
            "tags": tag_map(cloud, [{"Key": t["TagKey"], "Value": t["TagValue"]} for t in tags]),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        kms = cloud.client("kms")
        if change.touches("description"):
            kms.update_key_description(KeyId=ident, Description=change.new.get("description", ""))
        if change.touches("policy") and "policy" in change.new:
            kms.put_key_policy(KeyId=ident, PolicyName="default", Policy=change.new["policy"])
        self._set(cloud, ident, change.new, change.keys)
        if change.touches("tags"):
            put, remove = tag_changes(change)
            kms.untag_resource(KeyId=ident, TagKeys=remove)
            kms.tag_resource(KeyId=ident, Tags=[{"TagKey": k, "TagValue": v} for k, v in put.items()])

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        window = state.get("deletionWindowInDays", _DEFAULT_WINDOW_DAYS)
        or_none(cloud.client("kms").schedule_key_deletion, KeyId=ident, PendingWindowInDays=window)


_ALIAS_NAMING = Naming(prefix_property="namePrefix", limit=256, start="alias/")


class Alias(Resource):
    token = "aws:kms/alias:Alias"
    naming = _ALIAS_NAMING
    force_new = frozenset({"name", "namePrefix"})
    mutable = frozenset({"targetKeyId"})
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", r"alias/(?!aws/)[a-zA-Z0-9/_-]+", "an alias (alias/… of a-z A-Z 0-9 / _ -, not alias/aws/…)"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _ALIAS_NAMING.from_prefix(inputs)
        cloud.client("kms").create_alias(AliasName=name, TargetKeyId=inputs["targetKeyId"])
        return name

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        pages = cloud.client("kms").get_paginator("list_aliases").paginate()
        found = next((a for page in pages for a in page["Aliases"] if a["AliasName"] == ident), None)
        if found is None:
            return None
        prefix = found["AliasArn"].rpartition(":")[0]
        return {
            "arn": found["AliasArn"],
            "name": ident,
            "targetKeyArn": f"{prefix}:key/{found['TargetKeyId']}",
            "targetKeyId": _as_named(state.get("targetKeyId"), found["TargetKeyId"]),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        cloud.client("kms").update_alias(AliasName=ident, TargetKeyId=change.new["targetKeyId"])

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("kms").delete_alias, AliasName=ident)


def _as_named(given: str | None, key_id: str) -> str:
    """The key as the program names it: by ARN or by id."""
    return given if given and given.endswith(key_id) else key_id


class Repository(Resource):
    token = "aws:ecr/repository:Repository"
    naming = Naming(limit=256, lower=True)
    tagged = True
    force_new = frozenset({"encryptionConfigurations", "name"})
    mutable = frozenset({"forceDelete", "imageScanningConfiguration", "imageTagMutability"})
    enums = {
        "imageTagMutability": frozenset({"MUTABLE", "IMMUTABLE"}),
        "encryptionConfigurations[*].encryptionType": frozenset({"AES256", "KMS", "KMS_DSSE"}),
    }
    rules = (matches("name", r"(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z0-9]+)*", "a repository name"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        encryption = [
            present(encryptionType=e.get("encryptionType", "AES256"), kmsKey=e.get("kmsKey"))
            for e in inputs.get("encryptionConfigurations", [])
        ]
        cloud.client("ecr").create_repository(
            repositoryName=inputs["name"],
            tags=tag_list(inputs.get("tags")),
            **present(
                encryptionConfiguration=encryption[0] if encryption else None,
                imageScanningConfiguration=inputs.get("imageScanningConfiguration"),
                imageTagMutability=inputs.get("imageTagMutability"),
            ),
        )
        return str(inputs["name"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        ecr = cloud.client("ecr")
        found = first(ecr.describe_repositories, "repositories", repositoryNames=[ident])
        return found and {
            "arn": found["repositoryArn"],
            "name": found["repositoryName"],
            "registryId": found["registryId"],
            "repositoryUrl": found["repositoryUri"],
            "imageTagMutability": found.get("imageTagMutability"),
            "imageScanningConfiguration": found.get("imageScanningConfiguration"),
            "tags": tag_map(cloud, ecr.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        ecr = cloud.client("ecr")
        if change.touches("imageTagMutability"):
            wanted = change.new.get("imageTagMutability", "MUTABLE")
            ecr.put_image_tag_mutability(repositoryName=ident, imageTagMutability=wanted)
        if change.touches("imageScanningConfiguration"):
            scanning = change.new.get("imageScanningConfiguration", {"scanOnPush": False})
            ecr.put_image_scanning_configuration(repositoryName=ident, imageScanningConfiguration=scanning)
        if change.touches("tags"):
            put, remove = tag_changes(change)
            ecr.untag_resource(resourceArn=change.state["arn"], tagKeys=remove)
            ecr.tag_resource(resourceArn=change.state["arn"], tags=tag_list(put))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ecr").delete_repository, repositoryName=ident, force=bool(state.get("forceDelete")))
