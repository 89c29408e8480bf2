"""A queue of the cloud's warnings about spot instances, read by the spot watchdog.

The warnings let the watchdog start a replacement sooner. Correctness never depends on them, because each node agent
drains its own instance. Events that would only cause unnecessary passes are excluded (docs/cloud-answers.md).
"""

import json
from collections.abc import Mapping
from typing import Final

import pulumi
from pulumi_aws import cloudwatch, sqs

DETAIL_TYPES: Final = ("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation")
KEPT_SECONDS: Final = 600
"""Retention time in seconds. A notice concerns the next two minutes; an older one has no value."""


class Notices(pulumi.ComponentResource):
    """Sends spot interruption warnings and rebalance recommendations of this account and region from EventBridge to
    SQS.
    """

    queue_url: pulumi.Output[str]

    def __init__(self, name: str, tags: Mapping[str, str], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Notices", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        queue = sqs.Queue(
            name,
            # the daemon finds the queue by this name
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
