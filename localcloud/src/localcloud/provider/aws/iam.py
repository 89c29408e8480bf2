"""IAM roles, policies and instance profiles."""

from __future__ import annotations

import json
from typing import Any

from localcloud.documents import inner, items
from localcloud.provider.aws.calls import or_none, present
from localcloud.provider.aws.tags import tag_changes, tag_list, tag_map
from localcloud.provider.checks import between, conflicts, matches
from localcloud.provider.errors import Failure, ProviderError
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource, Rule
from localcloud.provider.session import Cloud
from localcloud.provider.wire import UNKNOWN, Properties

_NAME = r"[\w+=,.@-]{1,%d}"


def is_policy(name: str) -> Rule:
    """The named input is an IAM policy document: a JSON object with a Statement."""

    def rule(given: Properties) -> list[Failure]:
        value = given.get(name)
        if value is None or value == UNKNOWN:
            return []
        try:
            document = json.loads(value)
        except ValueError as error:
            return [Failure(path=name, reason=f"not JSON: {error}")]
        if not isinstance(document, dict) or "Statement" not in document:
            return [Failure(path=name, reason="not a policy document: no 'Statement'")]
        return []

    return rule


def _text(document: Any) -> str:
    return document if isinstance(document, str) else json.dumps(document, sort_keys=True)


_ROLE_NAMING = Naming(prefix_property="namePrefix", limit=64)


class Role(Resource):
    token = "aws:iam/role:Role"
    naming = _ROLE_NAMING
    tagged = True
    force_new = frozenset({"name", "namePrefix", "path"})
    mutable = frozenset(
        {"assumeRolePolicy", "description", "forceDetachPolicies", "maxSessionDuration", "permissionsBoundary"}
    )
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", _NAME % 64, "a role name (1 to 64 of letters, digits and + = , . @ _ -)"),
        between("maxSessionDuration", 3600, 43_200),
        is_policy("assumeRolePolicy"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _ROLE_NAMING.from_prefix(inputs)
        cloud.client("iam").create_role(
            RoleName=name,
            AssumeRolePolicyDocument=inputs["assumeRolePolicy"],
            Tags=tag_list(inputs.get("tags")),
            **present(
                Description=inputs.get("description"),
                MaxSessionDuration=inputs.get("maxSessionDuration"),
                Path=inputs.get("path"),
                PermissionsBoundary=inputs.get("permissionsBoundary"),
            ),
        )
        return name

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        answer = or_none(cloud.client("iam").get_role, RoleName=ident)
        if answer is None:
            return None
        role = answer["Role"]
        return {
            "arn": role["Arn"],
            "assumeRolePolicy": _text(role["AssumeRolePolicyDocument"]),
            "createDate": role["CreateDate"].isoformat(),
            "description": role.get("Description") or None,
            "maxSessionDuration": role.get("MaxSessionDuration"),
            "name": ident,
            "path": role["Path"],
            "permissionsBoundary": inner(role, "PermissionsBoundary").get("PermissionsBoundaryArn"),
            "uniqueId": role["RoleId"],
            "tags": tag_map(cloud, role.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        iam = cloud.client("iam")
        if change.touches("assumeRolePolicy"):
            iam.update_assume_role_policy(RoleName=ident, PolicyDocument=change.new["assumeRolePolicy"])
        if change.touches("description", "maxSessionDuration"):
            iam.update_role(
                RoleName=ident,
                Description=change.new.get("description", ""),
                MaxSessionDuration=change.new.get("maxSessionDuration", 3600),
            )
        if change.touches("permissionsBoundary"):
            _set_boundary(iam, ident, change.new.get("permissionsBoundary"))
        if change.touches("tags"):
            put, remove = tag_changes(change)
            iam.untag_role(RoleName=ident, TagKeys=remove)
            iam.tag_role(RoleName=ident, Tags=tag_list(put))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        iam = cloud.client("iam")
        if or_none(iam.get_role, RoleName=ident) is None:
            return
        for profile in iam.list_instance_profiles_for_role(RoleName=ident)["InstanceProfiles"]:
            name = profile["InstanceProfileName"]
            iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=ident)
        if state.get("forceDetachPolicies"):
            for policy in iam.list_attached_role_policies(RoleName=ident)["AttachedPolicies"]:
                iam.detach_role_policy(RoleName=ident, PolicyArn=policy["PolicyArn"])
            for name in iam.list_role_policies(RoleName=ident)["PolicyNames"]:
                iam.delete_role_policy(RoleName=ident, PolicyName=name)
        or_none(iam.delete_role, RoleName=ident)


def _set_boundary(iam: Any, role: str, boundary: str | None) -> None:
    if boundary:
        iam.put_role_permissions_boundary(RoleName=role, PermissionsBoundary=boundary)
    else:
        iam.delete_role_permissions_boundary(RoleName=role)


_ROLE_POLICY_NAMING = Naming(prefix_property="namePrefix", limit=128)


class RolePolicy(Resource):
    token = "aws:iam/rolePolicy:RolePolicy"
    naming = _ROLE_POLICY_NAMING
    force_new = frozenset({"name", "namePrefix", "role"})
    mutable = frozenset({"policy"})
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", _NAME % 128, "a policy name (1 to 128 of letters, digits and + = , . @ _ -)"),
        is_policy("policy"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _ROLE_POLICY_NAMING.from_prefix(inputs)
        self._put(cloud, inputs["role"], name, inputs["policy"])
        return f"{inputs['role']}:{name}"

    def _put(self, cloud: Cloud, role: str, name: str, policy: str) -> None:
        cloud.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=policy)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        role, _, name = ident.partition(":")
        answer = or_none(cloud.client("iam").get_role_policy, RoleName=role, PolicyName=name)
        return answer and {"name": name, "policy": _text(answer["PolicyDocument"]), "role": role}

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        role, _, name = ident.partition(":")
        self._put(cloud, role, name, change.new["policy"])

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        role, _, name = ident.partition(":")
        or_none(cloud.client("iam").delete_role_policy, RoleName=role, PolicyName=name)


class RolePolicyAttachment(Resource):
    token = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
    force_new = frozenset({"policyArn", "role"})
    rules = (matches("policyArn", r"arn:[\w-]+:iam::(?:\d{12}|aws):policy/.+", "the ARN of a policy"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        cloud.client("iam").attach_role_policy(RoleName=inputs["role"], PolicyArn=inputs["policyArn"])
        return f"{inputs['role']}/{inputs['policyArn']}"

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        role, _, arn = ident.partition("/")
        answer = or_none(cloud.client("iam").list_attached_role_policies, RoleName=role)
        attached = {p["PolicyArn"] for p in answer["AttachedPolicies"]} if answer else set[str]()
        return {"policyArn": arn, "role": role} if arn in attached else None

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("iam").detach_role_policy, RoleName=state["role"], PolicyArn=state["policyArn"])


_PROFILE_NAMING = Naming(prefix_property="namePrefix", limit=128)


class InstanceProfile(Resource):
    token = "aws:iam/instanceProfile:InstanceProfile"
    naming = _PROFILE_NAMING
    tagged = True
    force_new = frozenset({"name", "namePrefix", "path"})
    mutable = frozenset({"role"})
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", _NAME % 128, "an instance profile name (1 to 128 of letters, digits and + = , . @ _ -)"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        name = _PROFILE_NAMING.from_prefix(inputs)
        cloud.client("iam").create_instance_profile(
            InstanceProfileName=name, Tags=tag_list(inputs.get("tags")), **present(Path=inputs.get("path"))
        )
        return name

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        if role := inputs.get("role"):
            cloud.client("iam").add_role_to_instance_profile(InstanceProfileName=ident, RoleName=role)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        answer = or_none(cloud.client("iam").get_instance_profile, InstanceProfileName=ident)
        if answer is None:
            return None
        profile = answer["InstanceProfile"]
        return {
            "arn": profile["Arn"],
            "createDate": profile["CreateDate"].isoformat(),
            "name": ident,
            "path": profile["Path"],
            "role": next((r["RoleName"] for r in profile["Roles"]), None),
            "uniqueId": profile["InstanceProfileId"],
            "tags": tag_map(cloud, profile.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        iam = cloud.client("iam")
        if change.touches("role"):
            self._remove(cloud, ident)
            self.after_create(cloud, ident, change.new)
        if change.touches("tags"):
            put, remove = tag_changes(change)
            iam.untag_instance_profile(InstanceProfileName=ident, TagKeys=remove)
            iam.tag_instance_profile(InstanceProfileName=ident, Tags=tag_list(put))

    def _remove(self, cloud: Cloud, ident: str) -> None:
        iam = cloud.client("iam")
        answer = or_none(iam.get_instance_profile, InstanceProfileName=ident)
        for role in items(inner(answer, "InstanceProfile"), "Roles"):
            iam.remove_role_from_instance_profile(InstanceProfileName=ident, RoleName=role["RoleName"])

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        self._remove(cloud, ident)
        or_none(cloud.client("iam").delete_instance_profile, InstanceProfileName=ident)


_POLICY_NAMING = Naming(prefix_property="namePrefix", limit=128)


class Policy(Resource):
    token = "aws:iam/policy:Policy"
    naming = _POLICY_NAMING
    tagged = True
    force_new = frozenset({"description", "name", "namePrefix", "path"})
    mutable = frozenset({"policy"})
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", _NAME % 128, "a policy name (1 to 128 of letters, digits and + = , . @ _ -)"),
        is_policy("policy"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("iam").create_policy(
            PolicyName=_POLICY_NAMING.from_prefix(inputs),
            PolicyDocument=inputs["policy"],
            Tags=tag_list(inputs.get("tags")),
            **present(Description=inputs.get("description"), Path=inputs.get("path")),
        )
        return str(answer["Policy"]["Arn"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        iam = cloud.client("iam")
        answer = or_none(iam.get_policy, PolicyArn=ident)
        if answer is None:
            return None
        policy = answer["Policy"]
        version = iam.get_policy_version(PolicyArn=ident, VersionId=policy["DefaultVersionId"])["PolicyVersion"]
        return {
            "arn": ident,
            "attachmentCount": policy.get("AttachmentCount"),
            "description": policy.get("Description") or None,
            "name": policy["PolicyName"],
            "path": policy["Path"],
            "policy": _text(version["Document"]),
            "policyId": policy["PolicyId"],
            "tags": tag_map(cloud, policy.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        iam = cloud.client("iam")
        if change.touches("policy"):
            self._delete_oldest_version(cloud, ident)
            iam.create_policy_version(PolicyArn=ident, PolicyDocument=change.new["policy"], SetAsDefault=True)
        if change.touches("tags"):
            put, remove = tag_changes(change)
            iam.untag_policy(PolicyArn=ident, TagKeys=remove)
            iam.tag_policy(PolicyArn=ident, Tags=tag_list(put))

    def _delete_oldest_version(self, cloud: Cloud, ident: str) -> None:
        """IAM keeps five versions of a policy: end the oldest before a sixth is made."""
        iam = cloud.client("iam")
        old = [v for v in iam.list_policy_versions(PolicyArn=ident)["Versions"] if not v["IsDefaultVersion"]]
        if len(old) >= 4:
            oldest = min(old, key=lambda v: v["CreateDate"])
            iam.delete_policy_version(PolicyArn=ident, VersionId=oldest["VersionId"])

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        iam = cloud.client("iam")
        answer = or_none(iam.list_policy_versions, PolicyArn=ident)
        if answer is None:
            return
        if inner(or_none(iam.get_policy, PolicyArn=ident), "Policy").get("AttachmentCount"):
            raise ProviderError(f"{ident}: still attached to a role; detach it first")
        for version in answer["Versions"]:
            if not version["IsDefaultVersion"]:
                iam.delete_policy_version(PolicyArn=ident, VersionId=version["VersionId"])
        or_none(iam.delete_policy, PolicyArn=ident)
