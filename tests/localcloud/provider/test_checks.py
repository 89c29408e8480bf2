"""Inputs that the local provider refuses in a preview, with the message that a user sees."""

from __future__ import annotations

from typing import Any

import pytest
from localcloud.provider.aws.package import PACKAGE as AWS
from localcloud.provider.checks import check
from localcloud.provider.schema import Schema, read_wheel
from localcloud.provider.wire import UNKNOWN

LAUNCH_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GROUP = "aws:autoscaling/group:Group"
HOOK = "aws:autoscaling/lifecycleHook:LifecycleHook"
VPC = "aws:ec2/vpc:Vpc"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
RESERVATION = "aws:ec2/capacityReservation:CapacityReservation"
PLACEMENT = "aws:ec2/placementGroup:PlacementGroup"
BUCKET = "aws:s3/bucket:Bucket"
OBJECT = "aws:s3/bucketObjectv2:BucketObjectv2"
ROLE = "aws:iam/role:Role"
QUEUE = "aws:sqs/queue:Queue"
RULE = "aws:cloudwatch/eventRule:EventRule"
RECORD = "aws:route53/record:Record"

TEMPLATE = {"id": "lt-1", "version": "1"}
GROUP_BASE = {"minSize": 0, "maxSize": 2, "availabilityZones": ["us-east-1a"], "launchTemplate": TEMPLATE}
RULE_BASE = {"securityGroupId": "sg-1", "ipProtocol": "tcp", "fromPort": 80, "toPort": 80, "cidrIpv4": "10.0.0.0/8"}
RESERVATION_BASE = {
    "availabilityZone": "us-east-1a",
    "instanceCount": 1,
    "instancePlatform": "Linux/UNIX",
    "instanceType": "g6.xlarge",
}


@pytest.fixture(scope="module")
def schema() -> Schema:
    return read_wheel(AWS.resources)


def case(name: str, token: str, inputs: dict[str, Any], path: str, reason: str) -> Any:
    return pytest.param(token, inputs, path, reason, id=name)


REFUSALS = [
    case("unknown-property", GROUP, GROUP_BASE | {"maxSise": 3}, "maxSise",
         "unexpected property 'maxSise'; did you mean 'maxSize'?"),
    case("unknown-nested-property", LAUNCH_TEMPLATE, {"metadataOptions": {"httpToken": "required"}},
         "metadataOptions.httpToken", "unexpected property 'httpToken'; did you mean 'httpTokens'?"),
    case("unknown-property-in-list", LAUNCH_TEMPLATE, {"blockDeviceMappings": [{"ebs": {"size": 10}}]},
         "blockDeviceMappings[0].ebs.size", "unexpected property 'size'"),
    case("wrong-type", GROUP, GROUP_BASE | {"maxSize": "2"}, "maxSize", "expected a whole number, got string "),
    case("fraction-for-integer", GROUP, GROUP_BASE | {"maxSize": 2.5}, "maxSize",
         "expected a whole number, got number 2.5"),
    case("boolean-for-integer", GROUP, GROUP_BASE | {"minSize": True}, "minSize",
         "expected a whole number, got boolean True"),
    case("boolean-where-text-is-wanted", LAUNCH_TEMPLATE, {"ebsOptimized": True}, "ebsOptimized",
         "expected a string, got boolean True"),
    case("object-for-list", GROUP, GROUP_BASE | {"tags": {"key": "a"}}, "tags", "expected a list, got object "),
    case("wrong-type-in-map", VPC, {"cidrBlock": "10.0.0.0/16", "tags": {"team": 1}}, "tags.team",
         "expected a string, got number 1"),
    case("missing-required", HOOK, {"autoscalingGroupName": "g"}, "lifecycleTransition",
         "missing required property 'lifecycleTransition'"),
    case("missing-required-nested", GROUP, GROUP_BASE | {"tags": [{"key": "a", "value": "b"}]},
         "tags[0].propagateAtLaunch", "missing required property 'propagateAtLaunch'"),
    case("not-modelled", GROUP, GROUP_BASE | {"warmPool": {"minSize": 1}}, "warmPool",
         "this property is not modelled by the local provider; leave it out for local stacks"),
    case("conflict-name-and-prefix", LAUNCH_TEMPLATE, {"name": "abc", "namePrefix": "a"}, "namePrefix",
         "'namePrefix' conflicts with 'name'; give one of them"),
    case("conflict-type-and-requirements", LAUNCH_TEMPLATE,
         {"instanceType": "g6.xlarge", "instanceRequirements": {"memoryMib": {"min": 1}, "vcpuCount": {"min": 1}}},
         "instanceRequirements", "'instanceRequirements' conflicts with 'instanceType'; give one of them"),
    case("conflict-default-version", LAUNCH_TEMPLATE, {"defaultVersion": 1, "updateDefaultVersion": True},
         "updateDefaultVersion", "'updateDefaultVersion' conflicts with 'defaultVersion'; give one of them"),
    case("conflict-content-and-source", OBJECT, {"bucket": "b", "content": "x", "contentBase64": "eA=="},
         "contentBase64", "'contentBase64' conflicts with 'content'; give one of them"),
    case("neither-of-two", GROUP, {"minSize": 0, "maxSize": 1, "availabilityZones": ["us-east-1a"]},
         "launchTemplate", "one of 'launchTemplate', 'mixedInstancesPolicy' is required"),
    case("both-of-two", GROUP, GROUP_BASE | {"vpcZoneIdentifiers": ["subnet-1"]}, "vpcZoneIdentifiers",
         "only one of 'availabilityZones', 'vpcZoneIdentifiers' may be given"),
    case("template-by-id-and-name", GROUP, GROUP_BASE | {"launchTemplate": {"id": "lt-1", "name": "x"}},
         "launchTemplate", "exactly one of 'id' and 'name' must be given"),
    case("enum-transition", HOOK, {"autoscalingGroupName": "g", "lifecycleTransition": "terminating"},
         "lifecycleTransition",
         "expected one of autoscaling:EC2_INSTANCE_LAUNCHING, autoscaling:EC2_INSTANCE_TERMINATING, "
         "got 'terminating'"),
    case("enum-in-list", GROUP, GROUP_BASE | {"suspendedProcesses": ["Launch", "AzRebalance"]},
         "suspendedProcesses[1]",
         "expected one of AZRebalance, AddToLoadBalancer, AlarmNotification, HealthCheck, InstanceRefresh, Launch, "
         "ReplaceUnhealthy, ScheduledActions, Terminate, got 'AzRebalance'"),
    case("enum-nested", LAUNCH_TEMPLATE, {"metadataOptions": {"httpTokens": "yes"}}, "metadataOptions.httpTokens",
         "expected one of optional, required, got 'yes'"),
    case("enum-market", LAUNCH_TEMPLATE, {"instanceMarketOptions": {"marketType": "reserved"}},
         "instanceMarketOptions.marketType",
         "expected one of capacity-block, interruptible-capacity-reservation, spot, got 'reserved'"),
    case("min-above-max", GROUP, GROUP_BASE | {"minSize": 3}, "minSize", "minSize 3 is above maxSize 2"),
    case("desired-above-max", GROUP, GROUP_BASE | {"desiredCapacity": 3}, "desiredCapacity",
         "desiredCapacity 3 is above maxSize 2"),
    case("desired-below-min", GROUP, GROUP_BASE | {"minSize": 1, "desiredCapacity": 0}, "desiredCapacity",
         "desiredCapacity 0 is below minSize 1"),
    case("timeout-not-a-duration", GROUP, GROUP_BASE | {"waitForCapacityTimeout": "ten"}, "waitForCapacityTimeout",
         "waitForCapacityTimeout: 'ten' is not a duration such as 10m or 0"),
    case("heartbeat-too-short", GROUP,
         GROUP_BASE | {"initialLifecycleHooks": [
             {"name": "d", "lifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "heartbeatTimeout": 5}]},
         "initialLifecycleHooks[0].heartbeatTimeout", "expected a number from 30 to 7200, got 5"),
    case("hop-limit", LAUNCH_TEMPLATE, {"metadataOptions": {"httpPutResponseHopLimit": 65}},
         "metadataOptions.httpPutResponseHopLimit", "expected a number from 1 to 64, got 65"),
    case("user-data-not-base64", LAUNCH_TEMPLATE, {"userData": "#!/bin/sh"}, "userData",
         "'#!/bin/sh' is not base64 text"),
    case("template-name", LAUNCH_TEMPLATE, {"name": "my template"}, "name",
         "'my template' is not a launch template name (3 to 128 of a-z A-Z 0-9 ( ) . / _ -)"),
    case("bucket-name-upper-case", BUCKET, {"bucket": "Models"}, "bucket",
         "'Models' is not a bucket name (3 to 63 of a-z 0-9 . -, starting and ending with a-z 0-9)"),
    case("bucket-name-like-an-address", BUCKET, {"bucket": "10.0.0.1"}, "bucket",
         "'10.0.0.1' is not a bucket name (3 to 63 of a-z 0-9 . -, starting and ending with a-z 0-9)"),
    case("role-name-too-long", ROLE, {"assumeRolePolicy": '{"Statement": []}', "name": "r" * 65}, "name",
         f"'{'r' * 65}' is not a role name (1 to 64 of letters, digits and + = , . @ _ -)"),
    case("policy-not-json", ROLE, {"assumeRolePolicy": "{"}, "assumeRolePolicy",
         "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    case("policy-without-statement", ROLE, {"assumeRolePolicy": "{}"}, "assumeRolePolicy",
         "not a policy document: no 'Statement'"),
    case("cidr-with-host-bits", VPC, {"cidrBlock": "10.0.0.1/16"}, "cidrBlock",
         "'10.0.0.1/16' is not a network in CIDR form: 10.0.0.1/16 has host bits set"),
    case("rule-without-source", INGRESS, {k: v for k, v in RULE_BASE.items() if k != "cidrIpv4"}, "cidrIpv4",
         "one of 'cidrIpv4', 'cidrIpv6', 'prefixListId', 'referencedSecurityGroupId' is required"),
    case("rule-without-port", INGRESS, {k: v for k, v in RULE_BASE.items() if k != "toPort"}, "toPort",
         "'toPort' is required when ipProtocol is tcp"),
    case("port-for-any-protocol", INGRESS, RULE_BASE | {"ipProtocol": "-1"}, "fromPort",
         "'fromPort' must be left out when ipProtocol is -1"),
    case("ports-swapped", INGRESS, RULE_BASE | {"fromPort": 90}, "fromPort", "fromPort 90 is above toPort 80"),
    case("limited-without-end", RESERVATION, RESERVATION_BASE | {"endDateType": "limited"}, "endDate",
         "'endDate' is required when endDateType is limited"),
    case("end-of-unlimited", RESERVATION,
         RESERVATION_BASE | {"endDateType": "unlimited", "endDate": "2027-01-01T00:00:00Z"}, "endDate",
         "'endDate' needs endDateType limited"),
    case("end-not-a-time", RESERVATION, RESERVATION_BASE | {"endDateType": "limited", "endDate": "tomorrow"},
         "endDate", "'tomorrow' is not a time such as 2026-11-21T09:00:00Z"),
    case("partitions-of-a-cluster", PLACEMENT, {"strategy": "cluster", "partitionCount": 2}, "partitionCount",
         "'partitionCount' needs strategy partition"),
    case("fifo-name", QUEUE, {"name": "events.fifo"}, "name",
         "'events.fifo': names of FIFO queues, and only theirs, end with .fifo"),
    case("rule-without-pattern", RULE, {"name": "r"}, "eventPattern",
         "one of 'eventPattern', 'scheduleExpression' is required"),
    case("record-type", RECORD, {"name": "a", "zoneId": "Z1", "type": "B", "records": ["1.2.3.4"]}, "type",
         "expected one of A, AAAA, CAA, CNAME, DS, HTTPS, MX, NAPTR, NS, PTR, SOA, SPF, SRV, SSHFP, SVCB, TLSA, TXT, "
         "got 'B'"),
]  # fmt: skip


@pytest.mark.parametrize(("token", "inputs", "path", "reason"), REFUSALS)
def test_invalid_input_is_refused_with_path_and_reason(
    schema: Schema, token: str, inputs: dict[str, Any], path: str, reason: str
) -> None:
    failures = check(AWS.resources[token], schema, inputs)
    assert [(f.path, f.reason) for f in failures] == [(path, reason)]


FIT = [
    pytest.param(GROUP, GROUP_BASE | {"desiredCapacity": 1, "suspendedProcesses": ["AZRebalance"]}, id="group"),
    pytest.param(GROUP, GROUP_BASE | {"minSize": UNKNOWN, "desiredCapacity": UNKNOWN}, id="unknown-sizes"),
    pytest.param(LAUNCH_TEMPLATE, {"userData": UNKNOWN, "metadataOptions": UNKNOWN}, id="unknown-whole-object"),
    pytest.param(LAUNCH_TEMPLATE, {"metadataOptions": {"httpTokens": UNKNOWN}}, id="unknown-enum"),
    pytest.param(BUCKET, {"bucket": "gpu-fleet-local-models"}, id="bucket"),
    pytest.param(VPC, {"cidrBlock": UNKNOWN}, id="unknown-cidr"),
    pytest.param(INGRESS, RULE_BASE, id="rule"),
    pytest.param(ROLE, {"assumeRolePolicy": UNKNOWN}, id="unknown-policy"),
    pytest.param(RESERVATION, RESERVATION_BASE | {"endDateType": "unlimited"}, id="reservation"),
]


@pytest.mark.parametrize(("token", "inputs"), FIT)
def test_valid_inputs_pass(schema: Schema, token: str, inputs: dict[str, Any]) -> None:
    assert check(AWS.resources[token], schema, inputs) == []


def test_all_failures_are_reported_at_once(schema: Schema) -> None:
    failures = check(AWS.resources[GROUP], schema, {"minSize": "0", "maxSise": 1})
    assert {f.path for f in failures} == {"minSize", "maxSise", "maxSize"}


def test_message_about_a_type_does_not_repeat_the_value(schema: Schema) -> None:
    """The value could be a secret."""
    failures = check(AWS.resources[GROUP], schema, GROUP_BASE | {"maxSize": "hunter2"})
    assert all("hunter2" not in f.reason for f in failures)
