"""Service accounts, roles, and members of policies. A member is one entry of a shared policy."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from localcloud.documents import Document, is_document
from localcloud.provider.checks import matches
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import error_context
from localcloud.provider.gcp.session import GoogleError, RestClient, rest_client
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import UNKNOWN, Properties

_policies = threading.Lock()
"""Policies are read, changed and written back whole."""
_MEMBER_RULE = matches(
    "member",
    r"(?:(?:deleted:)?(?:user|serviceAccount|group|domain|principal|principalSet):.+|all(?:Authenticated)?Users"
    r"|project(?:Owner|Editor|Viewer):.+)",
    "a member such as serviceAccount:NAME@PROJECT.iam.gserviceaccount.com",
)
_ROLE_RULE = matches(
    "role",
    r"(?:(?:projects|organizations)/[^/]+/)?roles/[\w.]+",
    "a role such as roles/storage.objectViewer or projects/P/roles/R",
)
_TRIES = 5


class Account(Resource):
    token = "gcp:serviceaccount/account:Account"
    naming = Naming(property="accountId", limit=30, lower=True)
    force_new = frozenset({"accountId", "project"})
    mutable = frozenset({"description", "displayName"})
    rules = (
        matches(
            "accountId",
            r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])",
            "an account id (6 to 30 of a-z 0-9 -, beginning with a letter, not ending with a hyphen)",
        ),
    )

    @property
    def modelled(self) -> frozenset[str]:
        return self.force_new | self.mutable

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        project = inputs.get("project") or cloud.project
        account = {k: inputs[k] for k in ("description", "displayName") if k in inputs}
        with error_context("Error creating service account"):
            made = rest_client(cloud, "iam").call(
                "POST",
                f"projects/{project}/serviceAccounts",
                {"accountId": inputs["accountId"], "serviceAccount": account},
            )
        return str(made["name"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = rest_client(cloud, "iam").find(ident)
        if found is None:
            return None
        email = str(found["email"])
        kept = {k: found.get(k, "") for k in ("description", "displayName") if k in state}
        return {
            **kept,
            "accountId": email.partition("@")[0],
            "email": email,
            "member": f"serviceAccount:{email}",
            "name": found["name"],
            "project": found.get("projectId") or state.get("project") or cloud.project,
            "uniqueId": found.get("uniqueId"),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        fields = sorted(change.keys & {"description", "displayName"})
        account = {k: change.new.get(k, "") for k in fields}
        with error_context(f"Error updating service account {ident!r}"):
            body = {"serviceAccount": account, "updateMask": ",".join(fields)}
            rest_client(cloud, "iam").call("PATCH", ident, body)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        _delete(rest_client(cloud, "iam"), ident, "service account")


class IAMCustomRole(Resource):
    token = "gcp:projects/iAMCustomRole:IAMCustomRole"
    force_new = frozenset({"project", "roleId"})
    mutable = frozenset({"description", "permissions", "stage", "title"})
    naming = Naming(property="roleId", limit=64)
    enums = {
        "stage": frozenset({"ALPHA", "BETA", "DEPRECATED", "DISABLED", "EAP", "GA"}),
    }
    rules = (
        matches("roleId", r"[a-zA-Z0-9_.]{3,64}", "a role id (3 to 64 of a-z A-Z 0-9 _ .)"),
        matches("permissions[*]", r"[a-z]+[\w-]*(?:\.[\w-]+){2}", "a permission such as compute.instances.list"),
    )

    @property
    def modelled(self) -> frozenset[str]:
        return self.force_new | self.mutable

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        iam, project = rest_client(cloud, "iam"), inputs.get("project") or cloud.project
        ident = f"projects/{project}/roles/{inputs['roleId']}"
        role = self._role(inputs)
        with error_context("Error creating custom role"):
            iam.call("POST", f"projects/{project}/roles", {"roleId": inputs["roleId"], "role": role})
        return ident

    def _role(self, inputs: Properties) -> Document:
        return {
            "title": inputs["title"],
            "description": inputs.get("description", ""),
            "includedPermissions": inputs["permissions"],
            "stage": inputs.get("stage", "GA"),
        }

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = rest_client(cloud, "iam").find(ident)
        if found is None or found.get("deleted"):
            return None
        return {
            **({"description": found.get("description", "")} if "description" in state else {}),
            "deleted": False,
            "name": found["name"],
            "permissions": sorted(found.get("includedPermissions", [])),
            "project": ident.split("/")[1],
            "roleId": ident.rsplit("/", 1)[-1],
            "stage": found.get("stage", "GA"),
            "title": found.get("title", ""),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        with error_context(f"Error updating custom role {ident!r}"):
            rest_client(cloud, "iam").call("PATCH", ident, self._role(change.new))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        _delete(rest_client(cloud, "iam"), ident, "custom role")


def _delete(client: RestClient, ident: str, what: str) -> None:
    if client.find(ident) is None:
        return
    with error_context(f"Error deleting {what} {ident!r}"):
        client.call("DELETE", ident)


def _condition_fits(given: Properties) -> list[Failure]:
    condition = given.get("condition")
    if not is_document(condition):
        return []
    missing = [k for k in ("expression", "title") if not condition.get(k)]
    failures = [Failure(path=f"condition.{k}", reason=f"{k!r} is required in a condition") for k in missing]
    role = given.get("role")
    if isinstance(role, str) and role != UNKNOWN and role in ("roles/owner", "roles/editor", "roles/viewer"):
        failures.append(Failure(path="condition", reason=f"a basic role, {role}, takes no condition"))
    return failures


class _Member(Resource):
    """One member of one role in the policy of a resource."""

    force_new: ClassVar[frozenset[str]] = frozenset({"condition", "member", "role"})
    rules = (_MEMBER_RULE, _ROLE_RULE, _condition_fits)
    of: ClassVar[str]

    @property
    def modelled(self) -> frozenset[str]:
        return self.force_new

    @abstractmethod
    def thing(self, cloud: Cloud, properties: Properties) -> str:
        """Id of the resource that has the policy."""

    @abstractmethod
    def get_policy(self, cloud: Cloud, thing: str) -> Document:
        """The current policy, with conditions."""

    @abstractmethod
    def set_policy(self, cloud: Cloud, thing: str, policy: Document) -> None:
        """Write the policy. The cloud refuses it if its etag is not the current one."""

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        thing = self.thing(cloud, inputs)

        def add(bindings: list[Document]) -> None:
            binding = _binding(bindings, inputs)
            if binding is None:
                condition = inputs.get("condition")
                added = {"condition": condition} if condition else {}
                binding = {"role": inputs["role"], "members": list[str](), **added}
                bindings.append(binding)
            if inputs["member"] not in binding["members"]:
                binding["members"].append(inputs["member"])

        with error_context(f"Error applying IAM policy for {self.of} {thing!r}"):
            self._change(cloud, thing, add)
        title = inputs.get("condition", {}).get("title")
        return "/".join([thing, inputs["role"], inputs["member"], *([title] if title else [])])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        thing = self.thing(cloud, state)
        try:
            policy = self.get_policy(cloud, thing)
        except GoogleError as error:
            if error.status in (403, 404):
                return None
            raise
        binding = _binding(policy.get("bindings", []), state)
        if binding is None or state["member"] not in binding["members"]:
            return None
        kept = {k: state[k] for k in self.force_new if k in state}
        return {**kept, "etag": policy.get("etag")}

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        if self.read(cloud, ident, state) is None:
            return
        thing = self.thing(cloud, state)

        def remove(bindings: list[Document]) -> None:
            binding = _binding(bindings, state)
            if binding is not None:
                binding["members"] = [m for m in binding["members"] if m != state["member"]]
                if not binding["members"]:
                    bindings.remove(binding)

        with error_context(f"Error applying IAM policy for {self.of} {thing!r}"):
            self._change(cloud, thing, remove)

    def _change(self, cloud: Cloud, thing: str, change: Callable[[list[Document]], None]) -> None:
        with _policies:
            for left in reversed(range(_TRIES)):
                policy = self.get_policy(cloud, thing)
                bindings: list[Document] = policy.setdefault("bindings", [])
                change(bindings)
                # 3: a policy that may hold conditions
                policy["version"] = 3
                try:
                    self.set_policy(cloud, thing, policy)
                except GoogleError as error:
                    if left and error.status in (409, 412):
                        continue  # another writer changed it in between
                    raise
                return


def _binding(bindings: list[Document], wanted: Properties) -> Document | None:
    key = _condition(wanted.get("condition"))
    for binding in bindings:
        if binding["role"] == wanted["role"] and _condition(binding.get("condition")) == key:
            return binding
    return None


def _condition(raw: Document | None) -> tuple[str, str, str]:
    given = raw or {}
    return given.get("title", ""), given.get("expression", ""), given.get("description", "")


class BucketIAMMember(_Member):
    token = "gcp:storage/bucketIAMMember:BucketIAMMember"
    force_new = _Member.force_new | {"bucket"}
    of = "bucket"

    def thing(self, cloud: Cloud, properties: Properties) -> str:
        return f"b/{str(properties['bucket']).removeprefix('b/')}"

    def get_policy(self, cloud: Cloud, thing: str) -> Document:
        return rest_client(cloud, "storage").call(
            "GET", f"{thing}/iam", parameters={"optionsRequestedPolicyVersion": "3"}
        )

    def set_policy(self, cloud: Cloud, thing: str, policy: Document) -> None:
        rest_client(cloud, "storage").call("PUT", f"{thing}/iam", policy)


class SecretIamMember(_Member):
    token = "gcp:secretmanager/secretIamMember:SecretIamMember"
    force_new = _Member.force_new | {"project", "secretId"}
    of = "secret"

    def thing(self, cloud: Cloud, properties: Properties) -> str:
        secret = str(properties["secretId"])
        if "/" in secret:
            return secret
        return f"projects/{properties.get('project') or cloud.project}/secrets/{secret}"

    def get_policy(self, cloud: Cloud, thing: str) -> Document:
        parameters = {"options.requestedPolicyVersion": "3"}
        return rest_client(cloud, "secrets").call("GET", f"{thing}:getIamPolicy", parameters=parameters)

    def set_policy(self, cloud: Cloud, thing: str, policy: Document) -> None:
        rest_client(cloud, "secrets").call("POST", f"{thing}:setIamPolicy", {"policy": policy})


class IAMMember(_Member):
    token = "gcp:projects/iAMMember:IAMMember"
    force_new = _Member.force_new | {"project"}
    of = "project"

    def thing(self, cloud: Cloud, properties: Properties) -> str:
        return str(properties["project"])

    def get_policy(self, cloud: Cloud, thing: str) -> Document:
        body = {"options": {"requestedPolicyVersion": 3}}
        return rest_client(cloud, "resources").call("POST", f"projects/{thing}:getIamPolicy", body)

    def set_policy(self, cloud: Cloud, thing: str, policy: Document) -> None:
        rest_client(cloud, "resources").call("POST", f"projects/{thing}:setIamPolicy", {"policy": policy})
