"""Tests that Google Cloud roles are granted only as the program grants them."""

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from components.gcp.permissions import CONTROL, MARKS, ROUTER, STOP
from gpufleet.settings.environment import PolicyException
from policies.context import Context
from policies.resource import UNKNOWN
from tests.fixtures.policies.iam import GCP, RULE, violations
from tests.fixtures.policies.iam_google import (
    BUCKET,
    CTL,
    CTL_ROLE,
    CUSTOM,
    DOMAIN,
    GPU,
    ON_BUCKET,
    ON_PROJECT,
    ON_SECRET,
    OWN,
    PROJECT,
    SECRET_ROLE,
    VIEWER,
    on_bucket,
    on_project,
)
from tests.fixtures.policies.resources import TODAY

GIVEN_TO_ALL = json.dumps({"bindings": [{"role": VIEWER, "members": ["allUsers"]}]})


def where(expression: Any) -> dict[str, Any]:
    return on_bucket(condition={"title": "own objects", "expression": expression})


def on_secret(**changes: Any) -> dict[str, Any]:
    named = {"secretId": "gpu-fleet-prod-engine-key", "project": PROJECT}
    return {**named, "role": SECRET_ROLE, "member": GPU, **changes}


def custom(**changes: Any) -> dict[str, Any]:
    return {"roleId": "gpu_fleet_prod_ctl", "project": PROJECT, "permissions": list(CONTROL), **changes}


@pytest.mark.parametrize(
    ("kind", "props", "name"),
    [
        pytest.param(ON_BUCKET, on_bucket(), "x", id="bucket"),
        pytest.param(ON_BUCKET, on_bucket(member=UNKNOWN), "gpu-fleet-prod-gpu-bucket-0", id="email not known yet"),
        pytest.param(ON_BUCKET, on_bucket(member=CTL, condition=None), "x", id="control host, every object"),
        pytest.param(ON_BUCKET, on_bucket(member=CTL), "x", id="control host, fewer objects"),
        pytest.param(ON_BUCKET, on_bucket(bucket=UNKNOWN), "x", id="bucket not known yet"),
        pytest.param(ON_PROJECT, on_project(), "x", id="project"),
        pytest.param(ON_PROJECT, on_project(role=UNKNOWN, member=UNKNOWN), "gpu-fleet-prod-ctl", id="role not known"),
        pytest.param(ON_SECRET, on_secret(), "x", id="secret"),
        pytest.param(ON_SECRET, on_secret(member=CTL, secretId="gpu-fleet-prod-order-key"), "x", id="order key"),
        pytest.param(CUSTOM, custom(), "x", id="custom role"),
        pytest.param(CUSTOM, custom(permissions=[*CONTROL, *MARKS, *STOP]), "x", id="custom role of rules"),
        pytest.param(CUSTOM, custom(roleId="gpu_fleet_prod_rtr", permissions=list(ROUTER)), "x", id="of routers"),
        pytest.param(CUSTOM, custom(permissions=UNKNOWN), "x", id="permissions not known yet"),
    ],
)
def test_roles_of_the_program_pass(kind: str, props: dict[str, Any], name: str) -> None:
    assert violations(kind, props, GCP, name) == []


def given_to(member: str) -> dict[str, Any]:
    return on_bucket(member=member)


@pytest.mark.parametrize(
    ("kind", "props", "wrong"),
    [
        # members
        pytest.param(ON_BUCKET, given_to("allUsers"), "is the public", id="everybody"),
        pytest.param(ON_BUCKET, given_to("ALLUSERS"), "is the public", id="everybody, in capitals"),
        pytest.param(ON_BUCKET, given_to("allAuthenticatedUsers"), "is the public", id="everybody with an account"),
        pytest.param(ON_BUCKET, given_to("domain:gmail.com"), "every user of a domain", id="domain"),
        pytest.param(ON_BUCKET, given_to("principalSet://iam.googleapis.com/projects/1/locations/global/"
                                         "workloadIdentityPools/p/*"), "whole identity pool", id="identity pool"),
        pytest.param(ON_BUCKET, given_to("principal://iam.googleapis.com/projects/1/subject/x"),
                     "is not a service account", id="identity of a pool"),
        pytest.param(ON_BUCKET, given_to(f"projectViewer:{PROJECT}"), "a basic role", id="viewers of the project"),
        pytest.param(ON_BUCKET, given_to("user:ann@example.com"), "is not a service account", id="person"),
        pytest.param(ON_BUCKET, given_to("group:all@example.com"), "is not a service account", id="group"),
        pytest.param(ON_BUCKET, given_to("serviceAccount:gpu-fleet-prod-gpu@evil.iam.gserviceaccount.com"),
                     "of the environment's project", id="account of another project"),
        pytest.param(ON_BUCKET, given_to(f"serviceAccount:a@{DOMAIN}?uid=1"), "of the environment", id="with a uid"),
        pytest.param(ON_BUCKET, given_to(f"deleted:{GPU}?uid=1"), "of the environment's", id="deleted account"),
        pytest.param(ON_BUCKET, given_to(f"serviceAccount:other@{DOMAIN}"), "does not grant", id="another account"),
        pytest.param(ON_BUCKET, given_to("serviceAccount:gpu-fleet-dev-gpu@" + DOMAIN), "does not grant",
                     id="account of another environment"),
        pytest.param(ON_BUCKET, given_to(f"serviceAccount:1-compute@developer.gserviceaccount.com {GPU}"),
                     "of the environment's", id="two in one"),
        pytest.param(ON_BUCKET, given_to(GPU.replace("gpu@", "g\u0440u@")), "of the", id="Cyrillic letter"),
        # roles
        pytest.param(ON_BUCKET, on_bucket(role="roles/storage.admin"), "storage.buckets.setIamPolicy", id="admin"),
        pytest.param(ON_BUCKET, on_bucket(role="roles/storage.objectUser"), "does not grant it here", id="writes"),
        pytest.param(ON_BUCKET, on_bucket(role="roles/storage.legacyObjectReader"), "does not grant", id="legacy"),
        pytest.param(ON_BUCKET, on_bucket(role=""), "does not grant it here", id="no role"),
        pytest.param(ON_PROJECT, on_project(role=VIEWER), "does not grant it here", id="bucket's role on a project"),
        *(
            pytest.param(ON_PROJECT, on_project(role=f"roles/{role}"), permission, id=role)
            for role, permission in {
                "owner": "every other permission",
                "editor": "iam.serviceAccounts.actAs",
                "iam.securityAdmin": "setIamPolicy",
                "resourcemanager.projectIamAdmin": "setIamPolicy",
                "iam.serviceAccountTokenCreator": "getAccessToken",
                "iam.serviceAccountUser": "actAs",
                "compute.admin": "setMetadata",
                "viewer": "does not grant it here",
            }.items()
        ),
        pytest.param(ON_PROJECT, on_project(role="roles/../projects/x/roles/y"), "does not grant", id="two dots"),
        pytest.param(ON_PROJECT, on_project(role="projects/other/roles/gpu_fleet_prod_ctl"), "does not grant",
                     id="role of another project"),
        pytest.param(ON_PROJECT, on_project(role="organizations/1/roles/gpu_fleet_prod_ctl"), "does not grant",
                     id="role of an organisation"),
        pytest.param(ON_PROJECT, on_project(role=f"projects/{PROJECT}/roles/mine"), "does not grant", id="a role"),
        # resources
        pytest.param(ON_PROJECT, on_project(project="other"), "does not grant it here", id="another project"),
        pytest.param(ON_PROJECT, on_project(role=CTL_ROLE + "_instances"), "without the", id="all instances"),
        pytest.param(ON_BUCKET, on_bucket(bucket="other"), "does not grant it here", id="another bucket"),
        pytest.param(ON_SECRET, on_secret(secretId="other"), "does not grant it here", id="another secret"),
        pytest.param(ON_SECRET, on_secret(secretId="gpu-fleet-prod-order-key"), "does not grant", id="the order key"),
        pytest.param("gcp:folder/iAMMember:IAMMember", {"folder": "1", "role": VIEWER, "member": CTL},
                     "does not grant it here", id="folder"),
        pytest.param("gcp:organizations/iAMMember:IAMMember", {"orgId": "1", "role": VIEWER, "member": CTL},
                     "does not grant it here", id="organisation"),
        pytest.param("gcp:serviceaccount/iAMMember:IAMMember",
                     {"serviceAccountId": "x", "role": "roles/iam.serviceAccountUser", "member": CTL},
                     "iam.serviceAccounts.actAs", id="service account"),
        pytest.param("gcp:compute/instanceIAMMember:InstanceIAMMember", {"role": VIEWER, "member": CTL},
                     "does not grant it here", id="instance"),
        # conditions
        pytest.param(ON_BUCKET, on_bucket(condition=None), "without the condition", id="no condition"),
        pytest.param(ON_BUCKET, where("true"), "without the condition", id="always true"),
        pytest.param(ON_BUCKET, where(f"{OWN} || true"), "without the condition", id="or true"),
        pytest.param(ON_BUCKET, where(f"{OWN} // "), "without the condition", id="comment"),
        pytest.param(ON_BUCKET, where(OWN.replace("agents", "")), "without the condition", id="every object"),
        pytest.param(ON_BUCKET, where(OWN.replace(BUCKET, "other")), "without the condition", id="of another bucket"),
        pytest.param(ON_BUCKET, where(""), "without the condition", id="empty condition"),
        pytest.param(ON_BUCKET, where(None), "without the condition", id="condition without an expression"),
        # other resource types that grant roles
        pytest.param("gcp:storage/bucketIAMBinding:BucketIAMBinding",
                     {**on_bucket(), "member": None, "members": [GPU, "allUsers"]}, "members[1] is 'allUsers'",
                     id="binding, one bad"),
        pytest.param("gcp:projects/iAMBinding:IAMBinding",
                     {"project": PROJECT, "role": VIEWER, "members": "allUsers"}, "is the public", id="no list"),
        pytest.param("gcp:storage/bucketIAMPolicy:BucketIAMPolicy",
                     {"bucket": BUCKET, "policyData": GIVEN_TO_ALL},
                     "policyData.bindings[0].members[0] is 'allUsers'", id="whole policy"),
        pytest.param("gcp:storage/bucketIAMPolicy:BucketIAMPolicy", {"policyData": "{"}, "is not a", id="broken"),
        pytest.param("gcp:storage/bucketACL:BucketACL", {"roleEntities": ["OWNER:x", "READER:allUsers"]},
                     "roleEntities[1] is 'READER:allUsers': gives access to the public", id="access list"),
        pytest.param("gcp:storage/bucketAccessControl:BucketAccessControl", {"role": "READER", "entity": "allUsers"},
                     "gives access to the public", id="entry of an access list"),
        pytest.param("gcp:bigquery/dataset:Dataset", {"accesses": [{"specialGroup": "allAuthenticatedUsers"}]},
                     "gives access to the public", id="another access list"),
        # custom roles
        *(
            pytest.param(CUSTOM, custom(permissions=[*CONTROL, permission]), "permissions[14] is", id=permission)
            for permission in (
                "resourcemanager.projects.setIamPolicy",
                "compute.instances.setMetadata",
                "iam.serviceAccounts.actAs",
                "storage.objects.get",
                "compute.instances.*",
                "COMPUTE.instances.delete",
            )
        ),
        pytest.param(CUSTOM, custom(roleId="mine", permissions=["storage.buckets.setIamPolicy"]),
                     "it contains storage.buckets.setIamPolicy", id="role of one's own"),
        pytest.param(CUSTOM, custom(roleId="gpu_fleet_prod_rtr"), "is not a permission", id="routers as host"),
        pytest.param(CUSTOM, custom(project="other"), "is not the project", id="in another project"),
        pytest.param("gcp:organizations/iAMCustomRole:IAMCustomRole", {"roleId": "x", "permissions": list(ROUTER)},
                     "is not a custom role in policies/lists/google_iam.json", id="of the organisation"),
    ],
)  # fmt: skip
def test_roles_outside_the_program_are_refused(kind: str, props: dict[str, Any], wrong: str) -> None:
    messages = violations(kind, props, GCP)
    assert messages
    assert wrong in messages[0]


def test_an_unknown_member_is_matched_by_the_name_of_the_binding() -> None:
    whole = on_bucket(member=UNKNOWN, condition=None)
    assert violations(ON_BUCKET, whole, GCP, "gpu-fleet-prod-ctl-bucket-0") == []
    assert violations(ON_BUCKET, whole, GCP, "gpu-fleet-prod-gpu-bucket-0")
    assert violations(ON_BUCKET, whole, GCP, "mine")


def test_up_checks_what_the_preview_matched_by_name() -> None:
    assert violations(ON_BUCKET, on_bucket(condition=None), GCP, "gpu-fleet-prod-ctl-bucket-0")


def test_an_environment_with_hyphens_has_underscores_in_its_role() -> None:
    fleet = json.loads(GCP.config["gpu-fleet:fleet"]) | {"environment": "eu-prod"}
    context = replace(GCP, environment="eu-prod", config={"gpu-fleet:fleet": json.dumps(fleet)})
    assert violations(CUSTOM, custom(roleId="gpu_fleet_eu_prod_ctl"), context) == []
    assert violations(CUSTOM, custom(), context)


def test_without_settings_no_project_is_known_and_external_members_are_refused() -> None:
    nothing = Context(today=TODAY)
    assert violations(ON_BUCKET, on_bucket(), nothing) == []
    assert violations(ON_BUCKET, on_bucket(member="allUsers"), nothing)


@pytest.mark.parametrize(("until", "passes"), [(TODAY, True), (date(2026, 11, 20), False)])
def test_an_additional_binding_needs_an_expiring_exception(until: date, passes: bool) -> None:
    exception = PolicyException(rule=RULE, resource="it", owner="ann", reason="reports", until=until)
    context = replace(GCP, exceptions=(exception,))
    assert (violations(ON_PROJECT, on_project(role="roles/viewer"), context) == []) is passes
