"""The calls that each kind of machine makes on AWS. A test compares them with the code that makes them."""

from collections.abc import Mapping

from components.aws.identities import Allowed
from fleet import tags


def of_instances(
    *, bucket: str, region: str, account: str, environment: str, agent_token: str
) -> tuple[Allowed, ...]:
    """A GPU instance: reads its agent and model, its token, says its phase, and answers for its own drain."""
    return (
        Allowed(
            actions=("s3:GetObject",),
            resources=(f"arn:aws:s3:::{bucket}/agents/*", f"arn:aws:s3:::{bucket}/models/*"),
        ),
        _token(region, account, agent_token),
        Allowed(
            actions=("autoscaling:DescribeAutoScalingInstances", "autoscaling:DescribeLifecycleHooks"),
            # these calls know no resource
            resources=("*",),
        ),
        Allowed(
            actions=("autoscaling:CompleteLifecycleAction",),
            resources=(f"arn:aws:autoscaling:{region}:{account}:autoScalingGroup:*",),
            when=_of_environment("autoscaling", environment),
        ),
        Allowed(
            actions=("ec2:CreateTags",),
            resources=(f"arn:aws:ec2:{region}:{account}:instance/*",),
            # no other key: an instance that is broken into cannot mark its neighbours as idle
            when=_of_environment("ec2", environment) | {"ForAllValues:StringEquals": {"aws:TagKeys": [tags.PHASE]}},
        ),
    )


def of_control(  # noqa: PLR0913
    *, bucket: str, region: str, account: str, environment: str, agent_token: str, notices: str
) -> tuple[Allowed, ...]:
    """The control host: looks at everything, sizes this environment's groups, marks this environment's instances."""
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
        Allowed(
            actions=(
                "autoscaling:CancelInstanceRefresh",
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
            when=_of_environment("ec2", environment),
        ),
        Allowed(
            actions=("s3:GetObject", "s3:PutObject"),
            resources=(f"arn:aws:s3:::{bucket}/*",),
        ),
        # without it S3 answers 403 for what is not there: a first backup, a router's policy
        Allowed(actions=("s3:ListBucket",), resources=(f"arn:aws:s3:::{bucket}",)),
        _token(region, account, agent_token),
        Allowed(actions=("sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"), resources=(notices,)),
    )


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


def _token(region: str, account: str, name: str) -> Allowed:
    return Allowed(
        actions=("ssm:GetParameter",),
        resources=(f"arn:aws:ssm:{region}:{account}:parameter/{name.lstrip('/')}",),
    )


def _of_environment(service: str, environment: str) -> dict[str, Mapping[str, str | list[str]]]:
    key = f"{service}:ResourceTag/{tags.ENVIRONMENT}"
    return {"StringEquals": {key: environment}}
