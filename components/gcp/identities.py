"""Service accounts on Google Cloud: one per kind of machine, with only the permissions that its code needs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_gcp import projects, secretmanager, serviceaccount, storage


@dataclass(frozen=True, slots=True, kw_only=True)
class OnBucket:
    """A role on objects of a bucket, limited by prefixes of their names."""

    role: str
    prefixes: tuple[str, ...] = ()
    """Prefixes of object names. Empty: every object."""
    listed: tuple[str, ...] = ()
    """Prefixes that the account may list. Requires `prefixes`."""
    ending: str = ""
    """Required suffix of the object names. Empty: any suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnInstances:
    """Permissions on instances, limited by a prefix of their names."""

    permissions: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineIdentityArgs:
    account_id: str
    """Account id of at most 30 characters."""
    what: str
    """One-line description for operators."""
    project: str
    bucket: pulumi.Input[str]
    bucket_name: str
    on_bucket: Sequence[OnBucket]
    secrets: Sequence[str] = ()
    """Ids of secrets that the account may read."""
    permissions: Sequence[str] = ()
    """Single permissions in the project. They form a custom role."""
    on_instances: OnInstances | None = None

    def __post_init__(self) -> None:
        if len(self.account_id) > 30:
            raise ValueError(f"account_id {self.account_id!r} has more than 30 characters; shorten the environment")


class MachineIdentity(pulumi.ComponentResource):
    """A service account with exactly the given permissions."""

    email: pulumi.Output[str]

    def __init__(self, name: str, args: MachineIdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:gcp:MachineIdentity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        account = serviceaccount.Account(name, account_id=args.account_id, display_name=args.what, opts=child)
        member = account.email.apply(lambda email: f"serviceAccount:{email}")
        for index, right in enumerate(args.on_bucket):
            storage.BucketIAMMember(
                f"{name}-bucket-{index}",
                bucket=args.bucket,
                role=right.role,
                member=member,
                condition=_only(args.bucket_name, right),
                opts=child,
            )
        for secret in args.secrets:
            secretmanager.SecretIamMember(
                f"{name}-{secret}",
                secret_id=secret,
                project=args.project,
                role="roles/secretmanager.secretAccessor",
                member=member,
                opts=child,
            )
        if args.permissions:
            _in_project(name, args, args.permissions, member, child)
        if args.on_instances is not None:
            _in_project(
                f"{name}-instances", args, args.on_instances.permissions, member, child, args.on_instances.prefix
            )
        self.email = account.email
        self.register_outputs({"email": self.email})


def _in_project(  # noqa: PLR0913
    name: str,
    args: MachineIdentityArgs,
    permissions: Sequence[str],
    member: pulumi.Output[str],
    opts: pulumi.ResourceOptions,
    prefix: str | None = None,
) -> None:
    """Declare a custom role with these permissions and grant it in the project. `prefix` limits it to instances whose
    names start with it.
    """
    account_role = args.account_id.replace("-", "_")
    role = projects.IAMCustomRole(
        name,
        role_id=account_role if prefix is None else f"{account_role}_instances",
        project=args.project,
        title=args.what if prefix is None else f"{args.what}: instances of pools",
        permissions=sorted(permissions),
        opts=opts,
    )
    condition = None
    if prefix is not None:
        # the extracted name is empty for a resource that is not an instance
        expression = f'resource.name.extract("/instances/{{name}}").startsWith("{prefix}")'
        condition = projects.IAMMemberConditionArgs(title="instances of pools", expression=expression)
    projects.IAMMember(name, project=args.project, role=role.name, member=member, condition=condition, opts=opts)


def _only(bucket: str, right: OnBucket) -> storage.BucketIAMMemberConditionArgs | None:
    if not right.prefixes:
        return None
    objects = f"projects/_/buckets/{bucket}/objects/"
    conditions = [f'resource.name.startsWith("{objects}{prefix}")' for prefix in right.prefixes]
    # a list call targets the bucket, and the requested prefix is an attribute of the request
    conditions += [f'{_LISTED}.startsWith("{prefix}")' for prefix in right.listed]
    expression = " || ".join(conditions)
    if right.ending:
        expression = f'({expression}) && resource.name.endsWith("{right.ending}")'
    return storage.BucketIAMMemberConditionArgs(title="own objects", expression=expression)


_LISTED = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
