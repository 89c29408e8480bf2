"""What well-known predefined roles of Google Cloud can do that gives more rights, or everything at once.

Facts of Google's reference of roles, for messages alone: whether a role may be given is decided by the list. A role
that is missing here is refused all the same.
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
"""Predefined role to some of its permissions."""
_GIVES_MORE: Final = re.compile(
    r".+\.(?:setIamPolicy|actAs|getAccessToken|getOpenIdToken|implicitDelegation|signBlob|signJwt|setMetadata"
    r"|setCommonInstanceMetadata|setServiceAccount|osAdminLogin)"
    r"|iam\.(?:roles\.(?:create|update)|serviceAccountKeys\.create)|storage\.hmacKeys\.create"
)


def gives_more(permission: Any) -> bool:
    """Whether who has a permission can take or give more."""
    return isinstance(permission, str) and _GIVES_MORE.fullmatch(permission) is not None


def known(role: Any) -> str:
    """What is known of a role, to follow its name; empty: nothing."""
    found = DANGEROUS.get(role) if isinstance(role, str) else None
    return f", which holds {', '.join(found)}" if found else ""
