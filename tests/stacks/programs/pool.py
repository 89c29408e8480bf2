"""A pool with one group whose size another process owns."""

import base64

import pulumi
import pulumi_aws as aws

config = pulumi.Config()
template = aws.ec2.LaunchTemplate(
    "pool",
    image_id="ami-12c6146b",
    instance_type=config.get("type") or "t3.micro",
    user_data=pulumi.Output.secret(base64.b64encode(b"#!/bin/sh").decode()),
    metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 2},
    block_device_mappings=[{"device_name": "/dev/sda1", "ebs": {"volume_size": 100, "encrypted": "true"}}],
    tag_specifications=[{"resource_type": "instance", "tags": {"gpu-fleet:pool": "chat"}}],
)
group = aws.autoscaling.Group(
    "pool",
    min_size=0,
    max_size=5,
    desired_capacity=2,
    availability_zones=["us-east-1a"],
    mixed_instances_policy={
        "launch_template": {
            "launch_template_specification": {
                "launch_template_id": template.id,
                "version": template.latest_version.apply(str),
            },
            "overrides": [{"instance_type": "t3.micro"}, {"instance_type": "t3.small"}],
        },
        "instances_distribution": {"on_demand_percentage_above_base_capacity": 0},
    },
    tags=[{"key": "gpu-fleet:pool", "value": "chat", "propagate_at_launch": True}],
    initial_lifecycle_hooks=[
        {"name": "drain", "lifecycle_transition": "autoscaling:EC2_INSTANCE_TERMINATING", "heartbeat_timeout": 120}
    ],
    suspended_processes=["AZRebalance"],
    wait_for_capacity_timeout="0",
    force_delete=True,
    opts=pulumi.ResourceOptions(ignore_changes=["desired_capacity"]),
)
pulumi.export("group", group.name)
pulumi.export("version", template.latest_version)
pulumi.export("user_data", template.user_data)
