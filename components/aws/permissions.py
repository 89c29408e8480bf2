"""The calls that each kind of machine makes on AWS. A test compares them with the code that makes them."""

from components.aws.identities import Allowed
from fleet import tags


def of_instances(
    *, bucket: str, region: str, account: str, environment: str, agent_token: str
) -> tuple[Allowed, ...]:
    """A GPU instance: reads its agent and model, its token, and answers for its own drain."""
    own = {"StringEquals": {f"autoscaling:ResourceTag/{tags.ENVIRONMENT}": environment}}
    return (
        Allowed(
            actions=("s3:GetObject",),
            resources=(f"arn:aws:s3:::{bucket}/agents/*", f"arn:aws:s3:::{bucket}/models/*"),
        ),
        Allowed(
            actions=("ssm:GetParameter",),
            resources=(f"arn:aws:ssm:{region}:{account}:parameter/{agent_token.lstrip('/')}",),
        ),
        Allowed(
            actions=("autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"),
            resources=(f"arn:aws:autoscaling:{region}:{account}:autoScalingGroup:*",),
            when=own,
        ),
    )
