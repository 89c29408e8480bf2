"""The events about instances that EC2 sends to EventBridge. Rules and queues are moto's."""

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from moto.events.models import events_backends

from localcloud.addresses import ACCOUNT, REGION


class Event(StrEnum):
    """Detail types of EC2's events."""

    INTERRUPTION = "EC2 Spot Instance Interruption Warning"
    REBALANCE = "EC2 Instance Rebalance Recommendation"
    STATE = "EC2 Instance State-change Notification"
    BLOCK_DELIVERED = "Capacity Block Reservation Delivered"
    BLOCK_EXPIRES = "Capacity Block Reservation Expiration Warning"


def announce(event: Event, instance: str, detail: Mapping[str, Any], at: datetime) -> None:
    """Put one event of an instance on the default bus; its rules forward the event."""
    put(event, f"instance/{instance}", {"instance-id": instance, **detail}, at)


def announce_risk(event: Event, instance: str, zone: str, detail: Mapping[str, Any], at: datetime) -> None:
    """Put an interruption or rebalance recommendation on the bus. Its ARN has the zone instead of the account."""
    _send(event, f"arn:aws:ec2:{zone}:instance/{instance}", {"instance-id": instance, **detail}, at)


def put(event: Event, resource: str, detail: Mapping[str, Any], at: datetime) -> None:
    """Put one event on the default bus. `resource`: the last part of its ARN."""
    _send(event, f"arn:aws:ec2:{REGION}:{ACCOUNT}:{resource}", detail, at)


def _send(event: Event, resource: str, detail: Mapping[str, Any], at: datetime) -> None:
    events_backends[ACCOUNT][REGION].put_events(
        [
            {
                "Source": "aws.ec2",
                "DetailType": str(event),
                "Time": at.timestamp(),
                "Resources": [resource],
                "Detail": json.dumps(detail),
            }
        ]
    )
