"""The calls that each kind of machine makes on AWS. A test compares them with the code."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from components.aws.identities import Allowed
from gpufleet.domain import bucket as layout
from gpufleet.domain import tags
from gpufleet.domain.policies import EvidenceSource, OrphanAction, OrphanPolicy
from gpufleet.settings.document import PATH_IN_BUCKET

ROUTER_READS: Final = (PATH_IN_BUCKET, layout.ROUTER_POLICY, f"{layout.BUNDLES}*")
_MARKS: Final[Mapping[str, Mapping[str, str | list[str]]]] = {
    "ForAllValues:StringEquals": {"aws:TagKeys": [tags.IDLE_SINCE, tags.KEEP_UNTIL]},
    # a call without tag keys removes all tags; the condition above is true for such a call
    "Null": {"aws:TagKeys": "false"},
}
"""The tags that watchdogs and operators write on instances."""


class MachineRole(StrEnum):
    """The kinds of machines. Each has its own role."""

    INSTANCE = "instance"
    CONTROL = "control"
    ROUTER = "router"


def role_name(environment: str, machine: MachineRole) -> str:
    """Return the prefix of the role's name. Pulumi appends a suffix."""
    return f"gpu-fleet-{environment}-{machine}"


def machine_roles(account: str, environment: str) -> tuple[str, ...]:
    """Return ARN patterns of the roles of all machines of an environment."""
    return tuple(f"arn:aws:iam::{account}:role/{role_name(environment, machine)}-*" for machine in MachineRole)


def of_instances(*, bucket: str, region: str, account: str, environment: str, engine_key: str) -> tuple[Allowed, ...]:
    """Return the permissions of a GPU instance: it reads its agent, models and engine key.

    It may change nothing, because IAM has no condition that restricts a call to the calling instance.
    """
    return (
        Allowed(
            actions=("s3:GetObject",),
            resources=tuple(f"arn:aws:s3:::{bucket}/{what}/*" for what in ("agents", "approvals", "models")),
        ),
        _secrets(region, account, engine_key),
    )


def of_routers(*, bucket: str, region: str, account: str, engine_key: str) -> tuple[Allowed, ...]:
    """Return the permissions of a router on its own machine. It reads its software, the routing policy, the engine
    key and the list of serving instances. It may change nothing.
    """
    return (
        Allowed(
            actions=("s3:GetObject",),
            resources=tuple(f"arn:aws:s3:::{bucket}/{name}" for name in ROUTER_READS),
        ),
        # S3 returns 403 for a missing object; permission to list this one name distinguishes a missing object from a
        # missing permission
        Allowed(
            actions=("s3:ListBucket",),
            resources=(f"arn:aws:s3:::{bucket}",),
            when={"StringEquals": {"s3:prefix": layout.ROUTER_POLICY}},
        ),
        _secrets(region, account, engine_key),
        # this call has no resource-level permissions
        Allowed(actions=("ec2:DescribeInstances",), resources=("*",)),
    )


def of_control(  # noqa: PLR0913
    *,
    bucket: str,
    region: str,
    account: str,
    environment: str,
    notices: str,
    secrets: Sequence[str],
) -> tuple[Allowed, ...]:
    """Return the permissions of the control host. It reads all resources, resizes the groups of this environment and
    tags the instances of this environment.

    `secrets` are the SSM parameters that it reads: the order signing key, the engine key for its router, and the
    secrets that its settings name.
    """
    return (
        Allowed(
            actions=(
                "autoscaling:DescribeAutoScalingGroups",
                "autoscaling:DescribeInstanceRefreshes",
                "autoscaling:DescribeScalingActivities",
                "ec2:DescribeCapacityReservations",
                "ec2:DescribeInstances",
                "ec2:DescribeSpotPriceHistory",
                "pricing:GetProducts",
                "servicequotas:GetServiceQuota",
            ),
            # these calls have no resource-level permissions
            resources=("*",),
        ),
        # a shared reservation belongs to another account
        Allowed(
            actions=("ec2:GetCapacityReservationUsage",),
            resources=(f"arn:aws:ec2:{region}:*:capacity-reservation/*",),
        ),
        Allowed(
            actions=(
                "autoscaling:CancelInstanceRefresh",
                "autoscaling:CompleteLifecycleAction",
                "autoscaling:ResumeProcesses",
                "autoscaling:SetDesiredCapacity",
                "autoscaling:StartInstanceRefresh",
                "autoscaling:TerminateInstanceInAutoScalingGroup",
            ),
            resources=(f"arn:aws:autoscaling:{region}:{account}:autoScalingGroup:*",),
            when=_of_environment("autoscaling", environment),
        ),
        Allowed(
            actions=("ec2:CreateTags", "ec2:DeleteTags"),
            resources=(f"arn:aws:ec2:{region}:{account}:instance/*",),
            # no other tag key: otherwise the host could move instances into another environment or pool
            when=_of_environment("ec2", environment) | _MARKS,
        ),
        Allowed(
            actions=("s3:GetObject",),
            resources=tuple(
                f"arn:aws:s3:::{bucket}/{what}"
                for what in ("approvals/*", "backups/*", "control/*", "fleet/*", "models/*/served.json")
            ),
        ),
        # the bucket keeps every version, and no permission allows the removal of a version
        Allowed(actions=("s3:PutObject",), resources=(f"arn:aws:s3:::{bucket}/{layout.BACKUPS}*",)),
        # without it S3 returns 403 for a missing object, such as the first backup or a router's policy
        Allowed(actions=("s3:ListBucket",), resources=(f"arn:aws:s3:::{bucket}",)),
        _secrets(region, account, *secrets),
        Allowed(actions=("sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"), resources=(notices,)),
    )


def of_orphans(*, region: str, account: str, environment: str, rules: Sequence[OrphanPolicy]) -> tuple[Allowed, ...]:
    """Return the permissions for orphan rules, which concern machines outside every pool. They are empty without a
    rule and cover only the machines that a rule names.
    """
    allowed: list[Allowed] = []
    for rule in rules:
        changes = ("ec2:CreateTags", "ec2:DeleteTags")
        when = _named(rule, environment)
        instances = (f"arn:aws:ec2:{region}:{account}:instance/*",)
        allowed.append(Allowed(actions=changes, resources=instances, when=when | _MARKS))
        if rule.action is OrphanAction.STOP:
            allowed.append(Allowed(actions=("ec2:StopInstances",), resources=instances, when=when))
    if any(rule.evidence is EvidenceSource.CLOUDWATCH for rule in rules):
        # these calls have no resource-level permissions
        allowed.append(Allowed(actions=("cloudwatch:GetMetricData", "cloudwatch:ListMetrics"), resources=("*",)))
    return tuple(allowed)


def _named(rule: OrphanPolicy, environment: str) -> dict[str, Mapping[str, str | list[str]]]:
    """Return conditions that match GPU machines of no other environment with a rule's tags.

    IAM cannot test the age of a machine, and a rule's owner may be in one of several tags.
    """
    patterns: dict[str, str | list[str]] = {
        f"ec2:ResourceTag/{key}": value for key, value in sorted(rule.tags.items())
    }
    if rule.name_like is not None:
        patterns["ec2:ResourceTag/Name"] = rule.name_like
    return {
        "StringLike": {"ec2:InstanceType": ["g*", "p*"], **patterns},
        "StringEqualsIfExists": {f"ec2:ResourceTag/{tags.ENVIRONMENT}": environment},
    }


def of_sessions(*, region: str, account: str) -> tuple[Allowed, ...]:
    """Return the permissions of the SSM agent for operator sessions, and no other permission of SSM."""
    return (
        Allowed(
            actions=(
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ),
            # these calls have no resource-level permissions
            resources=("*",),
        ),
        Allowed(
            actions=("ssm:UpdateInstanceInformation",),
            resources=(f"arn:aws:ec2:{region}:{account}:instance/*",),
        ),
    )


def _secrets(region: str, account: str, *names: str) -> Allowed:
    return Allowed(
        actions=("ssm:GetParameter",),
        resources=tuple(f"arn:aws:ssm:{region}:{account}:parameter/{name.lstrip('/')}" for name in names),
    )


def _of_environment(service: str, environment: str) -> dict[str, Mapping[str, str | list[str]]]:
    key = f"{service}:ResourceTag/{tags.ENVIRONMENT}"
    return {"StringEquals": {key: environment}}
