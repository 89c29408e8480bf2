"""Predefined Google Cloud roles that allow privilege escalation or full access.

The facts come from Google's reference of roles and only improve messages. The list decides whether a role may be
granted, so a role that is missing here is refused too.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_AS_AN_ACCOUNT: Final = ("iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken")
DANGEROUS: Final[Mapping[str, tuple[str, ...]]] = {
    "roles/owner": ("resourcemanager.projects.setIamPolicy", "iam.serviceAccounts.actAs", "every other permission"),
    "roles/editor": ("iam.serviceAccounts.actAs", "compute.instances.setMetadata", "most writing permissions"),
    "roles/cloudbuild.builds.editor": ("cloudbuild.builds.create",),
    "roles/cloudfunctions.admin": ("cloudfunctions.functions.setIamPolicy",),
    "roles/cloudkms.admin": ("cloudkms.cryptoKeys.setIamPolicy",),
    "roles/compute.admin": ("compute.instances.setMetadata", "compute.instances.setIamPolicy"),
    "roles/compute.instanceAdmin": ("compute.instances.setMetadata", "compute.instances.setServiceAccount"),
    "roles/compute.instanceAdmin.v1": ("compute.instances.setMetadata", "compute.instances.setServiceAccount"),
    "roles/compute.osAdminLogin": ("compute.instances.osAdminLogin",),
    "roles/compute.securityAdmin": ("compute.firewalls.create",),
    "roles/deploymentmanager.editor": ("deploymentmanager.deployments.create",),
    "roles/iam.organizationRoleAdmin": ("iam.roles.update",),
    "roles/iam.roleAdmin": ("iam.roles.update",),
    "roles/iam.securityAdmin": ("resourcemanager.projects.setIamPolicy", "iam.serviceAccounts.setIamPolicy"),
    "roles/iam.serviceAccountAdmin": ("iam.serviceAccounts.setIamPolicy",),
    "roles/iam.serviceAccountKeyAdmin": ("iam.serviceAccountKeys.create",),
    "roles/iam.serviceAccountTokenCreator": (*_AS_AN_ACCOUNT, "iam.serviceAccounts.signBlob"),
    "roles/iam.serviceAccountUser": ("iam.serviceAccounts.actAs",),
    "roles/iam.workloadIdentityUser": _AS_AN_ACCOUNT,
    "roles/orgpolicy.policyAdmin": ("orgpolicy.policy.set",),
    "roles/resourcemanager.folderIamAdmin": ("resourcemanager.folders.setIamPolicy",),
    "roles/resourcemanager.organizationAdmin": ("resourcemanager.organizations.setIamPolicy",),
    "roles/resourcemanager.projectIamAdmin": ("resourcemanager.projects.setIamPolicy",),
    "roles/run.admin": ("run.services.setIamPolicy",),
    "roles/secretmanager.admin": ("secretmanager.secrets.setIamPolicy", "secretmanager.versions.access"),
    "roles/secretmanager.secretAccessor": ("secretmanager.versions.access",),
    "roles/storage.admin": ("storage.buckets.setIamPolicy",),
    "roles/storage.hmacKeyAdmin": ("storage.hmacKeys.create",),
    "roles/storage.legacyBucketOwner": ("storage.buckets.setIamPolicy",),
    "roles/storage.objectAdmin": ("storage.objects.setIamPolicy",),
}
"""Maps a predefined role to some of its permissions."""
_GIVES_MORE: Final = re.compile(
    r".+\.(?:setIamPolicy|actAs|getAccessToken|getOpenIdToken|implicitDelegation|signBlob|signJwt|setMetadata"
    r"|setCommonInstanceMetadata|setServiceAccount|osAdminLogin)"
    r"|iam\.(?:roles\.(?:create|update)|serviceAccountKeys\.create)|storage\.hmacKeys\.create"
)


def gives_more(permission: Any) -> bool:
    """Return whether a permission lets its holder obtain or grant more permissions."""
    return isinstance(permission, str) and _GIVES_MORE.fullmatch(permission) is not None


def known(role: Any) -> str:
    """Return known facts of a role, to follow its name in a message. Empty: there are none."""
    found = DANGEROUS.get(role) if isinstance(role, str) else None
    return f", which contains {', '.join(found)}" if found else ""
