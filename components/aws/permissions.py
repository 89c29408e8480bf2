"""The calls that each kind of machine makes on AWS. A test compares them with the code that makes them."""

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
    # a call that names no key removes all tags, and the line above holds for it
    "Null": {"aws:TagKeys": "false"},
}
"""The tags that watchdogs and people write on instances."""


class MachineRole(StrEnum):
    """Kinds of machines, each with a role of its own."""

    INSTANCE = "instance"
    CONTROL = "control"
    ROUTER = "router"


def role_name(environment: str, machine: MachineRole) -> str:
    """How the name of its role begins; Pulumi adds to it."""
    return f"gpu-fleet-{environment}-{machine}"


def machine_roles(account: str, environment: str) -> tuple[str, ...]:
    """Patterns of the ARNs of all machines' roles of an environment."""
    return tuple(f"arn:aws:iam::{account}:role/{role_name(environment, machine)}-*" for machine in MachineRole)


def of_instances(*, bucket: str, region: str, account: str, environment: str, engine_key: str) -> tuple[Allowed, ...]:
    """A GPU instance: reads its agent, models and engine key. It changes nothing: IAM knows no "itself"."""
    return (
        Allowed(
            actions=("s3:GetObject",),
            resources=tuple(f"arn:aws:s3:::{bucket}/{what}/*" for what in ("agents", "approvals", "models")),
        ),
        _secrets(region, account, engine_key),
    )


def of_routers(*, bucket: str, region: str, account: str, engine_key: str) -> tuple[Allowed, ...]:
    """A router on a machine of its own: reads what it is installed from, who goes where, the engine key, and who
    serves. It changes nothing.
    """
    return (
        Allowed(
            actions=("s3:GetObject",),
            resources=tuple(f"arn:aws:s3:::{bucket}/{name}" for name in ROUTER_READS),
        ),
        # S3 answers 403 for what is not there: a list of this one name tells that from a right that is missing
        Allowed(
            actions=("s3:ListBucket",),
            resources=(f"arn:aws:s3:::{bucket}",),
            when={"StringEquals": {"s3:prefix": layout.ROUTER_POLICY}},
        ),
        _secrets(region, account, engine_key),
        # this call knows no resource
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
    """The control host: looks at everything, sizes this environment's groups, marks this environment's instances.

    `secrets`: the SSM parameters that it reads: the key that signs orders, the engine key of its router, and what its
    settings name.
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
            # these calls know no resource
            resources=("*",),
        ),
        # a shared one belongs to another account
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
            # no other key: else it could move instances into another environment or pool
            when=_of_environment("ec2", environment) | _MARKS,
        ),
        Allowed(
            actions=("s3:GetObject",),
            resources=tuple(
                f"arn:aws:s3:::{bucket}/{what}"
                for what in ("approvals/*", "backups/*", "control/*", "fleet/*", "models/*/served.json")
            ),
        ),
        # the bucket keeps every version, and no call that removes one is allowed
        Allowed(actions=("s3:PutObject",), resources=(f"arn:aws:s3:::{bucket}/{layout.BACKUPS}*",)),
        # without it S3 answers 403 for what is not there: a first backup, a router's policy
        Allowed(actions=("s3:ListBucket",), resources=(f"arn:aws:s3:::{bucket}",)),
        _secrets(region, account, *secrets),
        Allowed(actions=("sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"), resources=(notices,)),
    )


def of_orphans(*, region: str, account: str, environment: str, rules: Sequence[OrphanPolicy]) -> tuple[Allowed, ...]:
    """What rules for machines outside every pool ask for: nothing without one, and only on whom a rule names."""
    allowed: list[Allowed] = []
    for rule in rules:
        changes = ("ec2:CreateTags", "ec2:DeleteTags")
        when = _named(rule, environment)
        instances = (f"arn:aws:ec2:{region}:{account}:instance/*",)
        allowed.append(Allowed(actions=changes, resources=instances, when=when | _MARKS))
        if rule.action is OrphanAction.STOP:
            allowed.append(Allowed(actions=("ec2:StopInstances",), resources=instances, when=when))
    if any(rule.evidence is EvidenceSource.CLOUDWATCH for rule in rules):
        # these calls know no resource
        allowed.append(Allowed(actions=("cloudwatch:GetMetricData", "cloudwatch:ListMetrics"), resources=("*",)))
    return tuple(allowed)


def _named(rule: OrphanPolicy, environment: str) -> dict[str, Mapping[str, str | list[str]]]:
    """GPU machines of no other environment with a rule's tags. IAM knows no age, and owners have several tags."""
    said: dict[str, str | list[str]] = {f"ec2:ResourceTag/{key}": value for key, value in sorted(rule.tags.items())}
    if rule.name_like is not None:
        said["ec2:ResourceTag/Name"] = rule.name_like
    return {
        "StringLike": {"ec2:InstanceType": ["g*", "p*"], **said},
        "StringEqualsIfExists": {f"ec2:ResourceTag/{tags.ENVIRONMENT}": environment},
    }


def of_sessions(*, region: str, account: str) -> tuple[Allowed, ...]:
    """Administration through SSM's sessions: what its agent calls, and nothing else of SSM."""
    return (
        Allowed(
            actions=(
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ),
            # these calls know no resource
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
