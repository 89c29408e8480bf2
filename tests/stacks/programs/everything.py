"""Declares every AWS type that the local provider models. With `second` it changes every mutable property."""

import json

import pulumi
import pulumi_aws as aws

config = pulumi.Config()
second = config.get_bool("second") or False
network = config.require("network")
TEAM = {"team": "two" if second else "one"}


def policy(**statement: object) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]})


# network
vpc = aws.ec2.Vpc("net", cidr_block=f"{network}.0.0/16", enable_dns_hostnames=True, tags=TEAM)
subnets = [
    aws.ec2.Subnet(
        f"net-{zone}",
        vpc_id=vpc.id,
        availability_zone=zone,
        cidr_block=f"{network}.{number}.0/24",
        map_public_ip_on_launch=second,
        tags=TEAM,
    )
    for number, zone in ((1, "us-east-1a"), (2, "us-east-1b"))
]
gateway = aws.ec2.InternetGateway("net", vpc_id=vpc.id, tags=TEAM)
public = aws.ec2.RouteTable("public", vpc_id=vpc.id, tags=TEAM)
private = aws.ec2.RouteTable("private", vpc_id=vpc.id, tags=TEAM)
aws.ec2.RouteTableAssociation("net", subnet_id=subnets[0].id, route_table_id=(private if second else public).id)
aws.ec2.Route("out", route_table_id=public.id, destination_cidr_block="0.0.0.0/0", gateway_id=gateway.id)
address = aws.ec2.Eip("nat", domain="vpc", tags=TEAM)
nat = aws.ec2.NatGateway("nat", allocation_id=address.id, subnet_id=subnets[0].id, tags=TEAM)
aws.ec2.Route("nat", route_table_id=private.id, destination_cidr_block="0.0.0.0/0", nat_gateway_id=nat.id)
aws.ec2.VpcEndpoint(
    "s3",
    vpc_id=vpc.id,
    service_name="com.amazonaws.us-east-1.s3",
    route_table_ids=[public.id, private.id] if second else [public.id],
    tags=TEAM,
)

# firewall
inside = aws.ec2.SecurityGroup("inside", vpc_id=vpc.id, description="inside", tags=TEAM)
control = aws.ec2.SecurityGroup("control", vpc_id=vpc.id, name_prefix="control-", tags=TEAM)
aws.ec2.VpcEndpoint(
    "ssm",
    vpc_id=vpc.id,
    service_name="com.amazonaws.us-east-1.ssm",
    vpc_endpoint_type="Interface",
    private_dns_enabled=True,
    subnet_ids=[subnets[0].id],
    security_group_ids=[inside.id],
    tags=TEAM,
)
aws.vpc.SecurityGroupEgressRule("out", security_group_id=inside.id, ip_protocol="-1", cidr_ipv4="0.0.0.0/0")
aws.vpc.SecurityGroupIngressRule(
    "from-control",
    security_group_id=inside.id,
    ip_protocol="tcp",
    from_port=8000,
    to_port=8001 if second else 8000,
    referenced_security_group_id=control.id,
    description="from the control host",
)
aws.vpc.SecurityGroupIngressRule(
    "from-network",
    security_group_id=inside.id,
    ip_protocol="tcp",
    from_port=443,
    to_port=443,
    cidr_ipv4=vpc.cidr_block,
)

# identities
role = aws.iam.Role(
    "machine",
    assume_role_policy=policy(Principal={"Service": "ec2.amazonaws.com"}, Action="sts:AssumeRole"),
    description=TEAM["team"],
    tags=TEAM,
)
aws.iam.RolePolicy(
    "machine", role=role.name, policy=policy(Action="s3:GetObject" if second else "s3:PutObject", Resource="*")
)
stop = aws.iam.Policy(
    "stop", policy=policy(Action="ec2:StopInstances" if second else "ec2:StartInstances", Resource="*"), tags=TEAM
)
aws.iam.RolePolicyAttachment("stop", role=role.name, policy_arn=stop.arn)
profile = aws.iam.InstanceProfile("machine", role=role.name, tags=TEAM)

# machines
image = aws.ec2.get_ami(most_recent=True, owners=["amazon"])
machine = aws.ec2.Instance(
    "machine",
    ami=image.id,
    instance_type="t3.small" if second else "t3.micro",
    subnet_id=subnets[0].id,
    vpc_security_group_ids=[control.id],
    associate_public_ip_address=False,
    iam_instance_profile=profile.name,
    metadata_options={"http_endpoint": "enabled", "http_tokens": "required", "http_put_response_hop_limit": 1},
    root_block_device={"volume_type": "gp3", "encrypted": True},
    tags={"Name": "machine", **TEAM},
)
disk = aws.ebs.Volume(
    "data", availability_zone="us-east-1a", size=30 if second else 20, type="gp3", encrypted=True, tags=TEAM
)
aws.ec2.VolumeAttachment(
    "data", device_name="/dev/sdf", instance_id=machine.id, volume_id=disk.id, stop_instance_before_detaching=True
)

# bucket
bucket = aws.s3.Bucket("Models", tags=TEAM, force_destroy=True)
aws.s3.BucketVersioning("models", bucket=bucket.bucket, versioning_configuration={"status": "Enabled"})
aws.s3.BucketServerSideEncryptionConfiguration(
    "models",
    bucket=bucket.bucket,
    rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "aws:kms"}, "bucket_key_enabled": True}],
)
closed = aws.s3.BucketPublicAccessBlock(
    "models",
    bucket=bucket.bucket,
    block_public_acls=True,
    block_public_policy=True,
    ignore_public_acls=True,
    restrict_public_buckets=second,
)
aws.s3.BucketOwnershipControls(
    "models", bucket=bucket.bucket, rule={"object_ownership": "BucketOwnerEnforced" if second else "ObjectWriter"}
)
aws.s3.BucketPolicy(
    "models",
    bucket=bucket.bucket,
    policy=bucket.arn.apply(lambda arn: policy(Principal="*", Action="s3:GetObject", Resource=f"{arn}/*")),
    opts=pulumi.ResourceOptions(depends_on=[closed]),
)
aws.s3.BucketLifecycleConfiguration(
    "models",
    bucket=bucket.bucket,
    rules=[
        {
            "id": "old",
            "status": "Enabled",
            "filter": {"prefix": ""},
            "noncurrent_version_expiration": {"noncurrent_days": 60 if second else 30},
        }
    ],
)
document = aws.s3.BucketObjectv2(
    "document",
    bucket=bucket.bucket,
    key="fleet/fleet.json",
    content=json.dumps(TEAM),
    content_type="application/json",
    tags=TEAM,
)
aws.s3.BucketObjectv2("file", bucket=bucket.bucket, key="program.py", source=pulumi.FileAsset("__main__.py"))
aws.s3.BucketObjectv2("text", bucket=bucket.bucket, key="text", source=pulumi.StringAsset(TEAM["team"]))

# messages
aws.ssm.Parameter(
    "token", name="/everything/token", type="SecureString", value=pulumi.Output.secret(f"hunter-{second}"), tags=TEAM
)
queue = aws.sqs.Queue(
    "notices", sqs_managed_sse_enabled=True, visibility_timeout_seconds=60 if second else 30, tags=TEAM
)
rule = aws.cloudwatch.EventRule(
    "notices", description=TEAM["team"], event_pattern=json.dumps({"source": ["aws.ec2"]}), tags=TEAM
)
aws.sqs.QueuePolicy(
    "notices",
    queue_url=queue.url,
    policy=queue.arn.apply(
        lambda arn: policy(Principal={"Service": "events.amazonaws.com"}, Action="sqs:SendMessage", Resource=arn)
    ),
)
aws.cloudwatch.EventTarget("notices", rule=rule.name, arn=queue.arn)

# keys and images
key = aws.kms.Key("state", description=TEAM["team"], enable_key_rotation=True, deletion_window_in_days=7, tags=TEAM)
aws.kms.Alias("state", target_key_id=key.key_id)
aws.ecr.Repository(
    "Vllm",
    image_tag_mutability="IMMUTABLE" if second else "MUTABLE",
    image_scanning_configuration={"scan_on_push": True},
    force_delete=True,
    tags=TEAM,
)

# balancing and names
balancer = aws.lb.LoadBalancer(
    "router",
    internal=True,
    load_balancer_type="network",
    subnets=[subnet.id for subnet in subnets],
    security_groups=[control.id],
    enable_cross_zone_load_balancing=True,
    tags=TEAM,
)
targets = aws.lb.TargetGroup(
    "router",
    port=8080,
    protocol="TCP",
    target_type="instance",
    vpc_id=vpc.id,
    health_check={"protocol": "TCP", "interval": 10, "healthy_threshold": 3 if second else 2},
    tags=TEAM,
)
aws.lb.Listener(
    "router",
    load_balancer_arn=balancer.arn,
    port=8081 if second else 8080,
    protocol="TCP",
    default_actions=[{"type": "forward", "target_group_arn": targets.arn}],
    tags=TEAM,
)
aws.lb.TargetGroupAttachment("router", target_group_arn=targets.arn, target_id=machine.id, port=8080)
zone = aws.route53.Zone("inside", name="fleet.internal", vpcs=[{"vpc_id": vpc.id}], comment=TEAM["team"], tags=TEAM)
aws.route53.Record(
    "control",
    zone_id=zone.zone_id,
    name="control.fleet.internal",
    type="A",
    ttl=60 if second else 30,
    records=[machine.private_ip],
)
aws.route53.Record(
    "router",
    zone_id=zone.zone_id,
    name="router.fleet.internal",
    type="A",
    aliases=[{"name": balancer.dns_name, "zone_id": balancer.zone_id, "evaluate_target_health": True}],
)

# capacity
reservation = aws.ec2.CapacityReservation(
    "reserved",
    availability_zone="us-east-1a",
    instance_count=2 if second else 1,
    instance_platform="Linux/UNIX",
    instance_type="g6.xlarge",
    instance_match_criteria="targeted",
)
template = aws.ec2.LaunchTemplate(
    "pool",
    image_id=image.id,
    instance_type="t3.micro",
    update_default_version=True,
    ebs_optimized="true",
    iam_instance_profile={"arn": profile.arn},
    network_interfaces=[
        {
            "device_index": 0,
            "associate_public_ip_address": "false",
            "delete_on_termination": "true",
            "security_groups": [inside.id],
        }
    ],
    block_device_mappings=[
        {
            "device_name": "/dev/sda1",
            "ebs": {"volume_type": "gp3", "volume_size": 200 if second else 100, "iops": 3000, "encrypted": "true"},
        }
    ],
    tags=TEAM,
)
group = aws.autoscaling.Group(
    "pool",
    min_size=0,
    max_size=3 if second else 2,
    desired_capacity=1,
    vpc_zone_identifiers=[subnet.id for subnet in subnets],
    launch_template={"id": template.id, "version": template.latest_version.apply(str)},
    termination_policies=["OldestInstance"],
    health_check_grace_period=30,
    tags=[{"key": "team", "value": TEAM["team"], "propagate_at_launch": True}],
    suspended_processes=["AZRebalance", "ReplaceUnhealthy"] if second else ["AZRebalance"],
    wait_for_capacity_timeout="0",
    opts=pulumi.ResourceOptions(ignore_changes=["desired_capacity"]),
)
aws.autoscaling.LifecycleHook(
    "drain",
    autoscaling_group_name=group.name,
    lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
    heartbeat_timeout=60 if second else 30,
    default_result="CONTINUE",
)

pulumi.export("bucket", bucket.bucket)
pulumi.export("reservation", reservation.id)
pulumi.export("document_version", document.version_id)
pulumi.export("zones", aws.get_availability_zones(state="available").names)
pulumi.export("account", aws.get_caller_identity().account_id)
pulumi.export("region", aws.get_region().region)
pulumi.export("vpc", aws.ec2.get_vpc_output(id=vpc.id).cidr_block)
pulumi.export(
    "policy", aws.iam.get_policy_document(statements=[{"actions": ["s3:GetObject"], "resources": ["*"]}]).json
)
