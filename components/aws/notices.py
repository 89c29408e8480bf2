"""What the cloud says of spot instances before it takes them, kept in a queue for the spot watchdog.

The watchdog starts a replacement sooner with it; correctness never depends on it, since each node agent drains
by itself. Events that would begin passes without need are not among them (docs/cloud-answers.md).
"""

import json
from collections.abc import Mapping
from typing import Final

import pulumi
from pulumi_aws import cloudwatch, sqs

DETAIL_TYPES: Final = ("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation")
KEPT_SECONDS: Final = 600
"""A notice is about the next two minutes; older ones say nothing."""


class Notices(pulumi.ComponentResource):
    """EventBridge to SQS: interruption warnings and rebalance recommendations of this account and region."""

    queue_url: pulumi.Output[str]

    def __init__(self, name: str, tags: Mapping[str, str], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Notices", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        queue = sqs.Queue(
            name,
            # the daemon finds it by this name
            name=name,
            message_retention_seconds=KEPT_SECONDS,
            sqs_managed_sse_enabled=True,
            tags=dict(tags),
            opts=child,
        )
        rule = cloudwatch.EventRule(
            name,
            description="Spot notices for gpu-fleet",
            event_pattern=json.dumps({"source": ["aws.ec2"], "detail-type": list(DETAIL_TYPES)}),
            tags=dict(tags),
            opts=child,
        )
        policy = sqs.QueuePolicy(
            name,
            queue_url=queue.url,
            policy=pulumi.Output.all(queue.arn, rule.arn).apply(lambda arns: _only_from(rule=arns[1], queue=arns[0])),
            opts=child,
        )
        cloudwatch.EventTarget(
            name, rule=rule.name, arn=queue.arn, opts=pulumi.ResourceOptions(parent=self, depends_on=[policy])
        )
        self.queue_url = queue.url
        self.register_outputs({"queueUrl": self.queue_url})


def _only_from(*, rule: str, queue: str) -> str:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, sort_keys=True)
