"""Tests that references of resources lead to the plan or the settings, because no rule checks other resources."""

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from gpufleet.prices.plan.preview import parse
from gpufleet.settings.environment import PolicyException
from policies import references
from policies.context import Context
from policies.pack import check
from policies.preview import resources_of
from policies.reference_table import NOTHING, REFERENCES
from policies.resource import UNKNOWN, Resource
from policies.resource_types import CREATED_TYPES
from tests.fixtures.policies.resources import DEV, GCP_TEMPLATE, GROUP, TEMPLATE

(RULE,) = references.RULES
SG, INGRESS = "aws:ec2/securityGroup:SecurityGroup", "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
INSTANCE, BALANCER, ENDPOINT = (
    *("aws:ec2/instance:Instance", "aws:lb/loadBalancer:LoadBalancer"),
    "aws:ec2/vpcEndpoint:VpcEndpoint",
)
ROUTE, ROUTES, PEERING = (
    *("aws:ec2/route:Route", "aws:ec2/routeTable:RouteTable"),
    "aws:ec2/vpcPeeringConnection:VpcPeeringConnection",
)
TARGET, HOOK = "aws:cloudwatch/eventTarget:EventTarget", "aws:autoscaling/lifecycleHook:LifecycleHook"
LISTENER, ATTACHED = "aws:lb/listener:Listener", "aws:lb/targetGroupAttachment:TargetGroupAttachment"
RECORD, ZONE, OBJECT = (
    *("aws:route53/record:Record", "aws:route53/zone:Zone"),
    "aws:s3/bucketObjectv2:BucketObjectv2",
)
VOLUME, DISK_OF = "aws:ebs/volume:Volume", "aws:ec2/volumeAttachment:VolumeAttachment"
FIREWALL, NETWORK = "gcp:compute/firewall:Firewall", "gcp:compute/network:Network"
GCP_INSTANCE, SUBNETWORK = "gcp:compute/instance:Instance", "gcp:compute/subnetwork:Subnetwork"
ACCOUNT, FRONT = "gcp:serviceaccount/account:Account", "gcp:compute/forwardingRule:ForwardingRule"
BACKEND, MEMBERS = "gcp:compute/regionBackendService:RegionBackendService", "gcp:compute/instanceGroup:InstanceGroup"
GCP_ZONE, GCP_RECORD = "gcp:dns/managedZone:ManagedZone", "gcp:dns/recordSet:RecordSet"
EMAIL = "gpu@p.iam.gserviceaccount.com"
LINK = "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1/subnetworks/gpu"


def arn(kind: str, name: str) -> str:
    return f"arn:aws:ec2:us-east-1:111122223333:{kind}/{name}"


PLAN = (
    Resource(type=SG, name="one", urn="urn:one", props={"arn": arn("security-group", "sg-1")}),
    Resource(type=SG, name="two", urn="urn:two", props={"arn": arn("security-group", "sg-2")}),
    Resource(type=SG, name="new", urn="urn:new", props={"arn": UNKNOWN}),
    Resource(type="aws:ec2/vpc:Vpc", name="vpc", urn="urn:vpc", props={"arn": arn("vpc", "vpc-1")}),
    Resource(type="aws:ec2/subnet:Subnet", name="s", urn="urn:subnet", props={"arn": arn("subnet", "subnet-1")}),
    Resource(type="aws:ec2/natGateway:NatGateway", name="nat", urn="urn:nat", props={"id": "nat-1"}),
    Resource(type=PEERING, name="peer", urn="urn:peer", props={"id": "pcx-1"}),
    Resource(type="aws:sqs/queue:Queue", name="q", urn="urn:queue", props={"arn": "arn:aws:sqs:r:1:q"}),
    Resource(type="aws:lb/targetGroup:TargetGroup", name="t", urn="urn:targets", props={"arn": "arn:t/targets/1"}),
    Resource(type=INSTANCE, name="i", urn="urn:instance", props={
        "arn": arn("instance", "i-1"), "privateIp": "10.0.0.4", "vpcSecurityGroupIds": ["sg-1"]}),
    Resource(type=BALANCER, name="lb", urn="urn:balancer", props={
        "arn": "arn:lb/1", "dnsName": "LB-1.elb.amazonaws.com", "securityGroups": ["sg-1"]}),
    Resource(type="aws:s3/bucket:Bucket", name="b", urn="urn:bucket", props={"bucket": "models"}),
    Resource(type=SUBNETWORK, name="gpu", urn="urn:subnetwork", props={"name": "gpu", "selfLink": LINK}),
    Resource(type=ACCOUNT, name="gpu", urn="urn:account", props={"email": EMAIL}),
    Resource(type=GCP_INSTANCE, name="m", urn="urn:machine", props={
        "networkInterfaces": [{"subnetwork": LINK, "networkIp": "10.0.0.5"}]}),
)  # fmt: skip


def refused(
    kind: str, props: dict[str, Any], depends: dict[str, tuple[str, ...]] | None = None, context: Context = DEV
) -> list[str]:
    """Return the refused properties of a resource, in a plan with the resources above."""
    it = Resource(type=kind, name="it", urn="urn:it", props=props, depends=depends or {})
    return [violation.path for violation in RULE.check([*PLAN, it], context)]


def test_the_plan_of_these_tests_passes() -> None:
    assert RULE.check(PLAN, DEV) == []


def groups(*ids: Any) -> dict[str, Any]:
    return {"networkInterfaces": [{"securityGroups": list(ids)}]}


def interface(**props: Any) -> dict[str, Any]:
    return {"networkInterfaces": [{"subnetwork": LINK, **props}]}


def forward(to: Any, **more: Any) -> dict[str, Any]:
    return {"defaultActions": [{"type": "forward", "targetGroupArn": to, **more}]}


OF_ONE, OF_TWO, OF_VPC = (
    {"networkInterfaces": ("urn:new",)},
    {"networkInterfaces": ("urn:new", "urn:one", "urn:vpc")},
    {"networkInterfaces": ("urn:vpc",)},
)
GROUPS_AT = "networkInterfaces[0].securityGroups"


@pytest.mark.parametrize(
    ("kind", "props", "depends", "paths"),
    [
        # security groups
        pytest.param(TEMPLATE, groups("sg-1", "sg-2"), {}, [], id="groups of the plan"),
        pytest.param(TEMPLATE, groups("sg-1", "sg-0123"), {}, [f"{GROUPS_AT}[1]"], id="a group of others"),
        pytest.param(TEMPLATE, groups(UNKNOWN), OF_ONE, [], id="a group to be created"),
        pytest.param(TEMPLATE, groups(UNKNOWN, UNKNOWN), OF_TWO, [], id="two groups of the plan"),
        pytest.param(TEMPLATE, groups(UNKNOWN, UNKNOWN), OF_ONE, [f"{GROUPS_AT}[0]", f"{GROUPS_AT}[1]"],
                     id="two unknown groups of one"),
        pytest.param(TEMPLATE, groups(UNKNOWN, "sg-0123"), OF_ONE, [f"{GROUPS_AT}[1]"], id="next to one of the plan"),
        pytest.param(TEMPLATE, groups(UNKNOWN), OF_VPC, [f"{GROUPS_AT}[0]"], id="unknown, of something else"),
        pytest.param(TEMPLATE, {"networkInterfaces": [{"securityGroups": UNKNOWN}]}, OF_ONE, [GROUPS_AT],
                     id="an unknown list"),
        pytest.param(TEMPLATE, {"networkInterfaces": [{"deviceIndex": 0}]}, {}, [GROUPS_AT], id="no group"),
        pytest.param(TEMPLATE, {**groups("sg-1"), "vpcSecurityGroupIds": ["sg-0123"]}, {}, ["vpcSecurityGroupIds[0]"],
                     id="of the template itself"),
        pytest.param(TEMPLATE, {**groups("sg-1"), "vpcSecurityGroupIds": UNKNOWN}, {}, [],
                     id="what a provider leaves unknown"),
        pytest.param(INSTANCE, {"vpcSecurityGroupIds": ["sg-1"]}, {}, [], id="instance"),
        pytest.param(INSTANCE, {"vpcSecurityGroupIds": ["sg-0123"]}, {}, ["vpcSecurityGroupIds[0]"],
                     id="instance in a group of others"),
        pytest.param(INSTANCE, {"vpcSecurityGroupIds": UNKNOWN}, {}, ["vpcSecurityGroupIds"], id="instance without"),
        pytest.param(BALANCER, {"securityGroups": ["sg-0123"]}, {}, ["securityGroups[0]"], id="load balancer"),
        pytest.param(ENDPOINT, {"serviceName": "com.amazonaws.us-east-1.ssm", "securityGroupIds": ["sg-0123"]}, {},
                     ["securityGroupIds[0]"], id="endpoint"),
        pytest.param(INGRESS, {"securityGroupId": "sg-1", "referencedSecurityGroupId": "sg-2"}, {}, [],
                     id="from a group of the plan"),
        pytest.param(INGRESS, {"securityGroupId": "sg-1", "referencedSecurityGroupId": "999999999999/sg-1"}, {},
                     ["referencedSecurityGroupId"], id="from a group of another account"),
        pytest.param(INGRESS, {"securityGroupId": "sg-0123", "cidrIpv4": "10.0.0.0/8"}, {}, ["securityGroupId"],
                     id="into a group of others"),
        pytest.param("aws:ec2/securityGroupRule:SecurityGroupRule",
                     {"type": "ingress", "securityGroupId": "sg-1", "sourceSecurityGroupId": "sg-0123"}, {},
                     ["sourceSecurityGroupId"], id="from a group of others, the older rule"),
        pytest.param(SG, {"vpcId": "vpc-1", "ingress": [{"securityGroups": ["sg-0123"]}]}, {},
                     ["ingress[0].securityGroups[0]"], id="from a group of others, inline"),
        # networks and routes
        pytest.param(SG, {"vpcId": "vpc-9"}, {}, ["vpcId"], id="group in a network of others"),
        pytest.param(GROUP, {"vpcZoneIdentifiers": ["subnet-9"]}, {}, ["vpcZoneIdentifiers[0]"], id="foreign subnet"),
        pytest.param(ROUTE, {"natGatewayId": "nat-1"}, {}, [], id="route to the gateway"),
        pytest.param(ROUTE, {"natGatewayId": UNKNOWN, "transitGatewayId": None}, {"natGatewayId": ("urn:nat",)}, [],
                     id="route to a gateway to be created"),
        pytest.param(ROUTE, {"natGatewayId": "nat-9"}, {}, ["natGatewayId"], id="route to a gateway of others"),
        pytest.param(ROUTE, {"vpcPeeringConnectionId": "pcx-1"}, {}, [], id="route to a peering of the plan"),
        pytest.param(ROUTE, {"vpcPeeringConnectionId": "pcx-9"}, {}, ["vpcPeeringConnectionId"],
                     id="route to a peering of others"),
        *(pytest.param(ROUTE, {key: "x-1"}, {}, [key], id=f"route, {key}")
          for key in ("transitGatewayId", "networkInterfaceId", "coreNetworkArn", "egressOnlyGatewayId")),
        pytest.param(ROUTES, {"vpcId": "vpc-1", "routes": [{"transitGatewayId": "tgw-1"}]}, {},
                     ["routes[0].transitGatewayId"], id="inline route"),
        pytest.param(ENDPOINT, {"serviceName": "com.amazonaws.vpce.us-east-1.vpce-svc-0123"}, {}, ["serviceName"],
                     id="service of others"),
        pytest.param(ENDPOINT, {"serviceName": "com.amazonaws.us-east-1.vpce-svc-0123"}, {}, ["serviceName"],
                     id="service of others, another name"),
        pytest.param(ENDPOINT, {"serviceName": UNKNOWN}, {}, ["serviceName"], id="unknown service"),
        # targets of requests, notices and disks
        pytest.param(TARGET, {"arn": "arn:aws:sqs:r:1:q"}, {}, [], id="notices to the queue"),
        pytest.param(TARGET, {"arn": "arn:aws:sqs:r:999999999999:q"}, {}, ["arn"], id="notices to another account"),
        pytest.param(TARGET, {"arn": UNKNOWN, "deadLetterConfig": {"arn": "arn:aws:sqs:r:9:q"}},
                     {"arn": ("urn:queue",)}, ["deadLetterConfig.arn"], id="dead letters to another account"),
        pytest.param(HOOK, {"notificationTargetArn": "arn:aws:sns:r:9:t"}, {}, ["notificationTargetArn"],
                     id="lifecycle hook that notifies others"),
        pytest.param(HOOK, {"roleArn": "arn:aws:iam::9:role/r"}, {}, ["roleArn"], id="role of a lifecycle hook"),
        pytest.param(GROUP, {"initialLifecycleHooks": [{"name": "ready"}, {"notificationTargetArn": "arn:x"}]}, {},
                     ["initialLifecycleHooks[1].notificationTargetArn"], id="hook of the group itself"),
        pytest.param(GROUP, {"targetGroupArns": ["arn:x"]}, {}, ["targetGroupArns[0]"], id="instances as targets"),
        pytest.param(LISTENER, forward("arn:t/targets/1"), {}, [], id="listener"),
        pytest.param(LISTENER, forward("arn:t/targets/9"), {}, ["defaultActions[0].targetGroupArn"],
                     id="listener to targets of others"),
        pytest.param(LISTENER, forward("arn:t/targets/1", forward={"targetGroups": [{"arn": "arn:t/targets/9"}]}), {},
                     ["defaultActions[0].forward.targetGroups[0].arn"], id="listener to targets of others, too"),
        pytest.param(LISTENER, {"defaultActions": [{"type": "redirect", "redirect": {"host": "x"}}]}, {},
                     ["defaultActions[0].targetGroupArn"], id="redirect"),
        pytest.param(ATTACHED, {"targetId": "i-1"}, {}, [], id="target"),
        pytest.param(ATTACHED, {"targetId": "i-9"}, {}, ["targetId"], id="target of others"),
        pytest.param(ATTACHED, {"targetId": "192.0.2.7"}, {}, ["targetId"], id="target by address"),
        pytest.param(RECORD, {"records": ["10.0.0.4"]}, {}, [], id="record of a machine"),
        pytest.param(RECORD, {"records": ["192.0.2.7"]}, {}, ["records[0]"], id="record of others"),
        pytest.param(RECORD, {"aliases": [{"name": "lb-1.elb.amazonaws.com"}]}, {}, [], id="alias of the balancer"),
        pytest.param(RECORD, {"aliases": [{"name": "lb-9.elb.amazonaws.com"}]}, {}, ["aliases[0].name"],
                     id="alias of others"),
        pytest.param(ZONE, {"vpcs": [{"vpcId": "vpc-9"}]}, {}, ["vpcs[0].vpcId"], id="zone of another network"),
        pytest.param(ZONE, {"vpcs": []}, {}, ["vpcs"], id="public zone"),
        pytest.param(OBJECT, {"bucket": "elsewhere"}, {}, ["bucket"], id="bucket of others"),
        pytest.param(VOLUME, {"snapshotId": "snap-1"}, {}, ["snapshotId"], id="volume of a snapshot"),
        pytest.param(VOLUME, {"kmsKeyId": "arn:aws:kms:r:9:key/1"}, {}, ["kmsKeyId"], id="key of others"),
        pytest.param(DISK_OF, {"instanceId": "i-9"}, {}, ["instanceId"], id="disk for a machine of others"),
        pytest.param("aws:sqs/queue:Queue", {"redrivePolicy": '{"deadLetterTargetArn": "arn:x"}'}, {},
                     ["redrivePolicy"], id="queue with a redrive target"),
        # Google Cloud
        pytest.param(GCP_TEMPLATE, interface(), {}, [], id="Google template"),
        pytest.param(GCP_TEMPLATE, interface(subnetwork="projects/q/regions/us-central1/subnetworks/gpu"), {},
                     ["networkInterfaces[0].subnetwork"], id="subnetwork of another project"),
        pytest.param(GCP_TEMPLATE, interface(subnetwork=LINK.replace("https://www.googleapis.com", "http://127.0.0.4")),
                     {}, [], id="link of the embedded cloud"),
        pytest.param(GCP_INSTANCE, {"networkInterfaces": [{"network": "projects/q/global/networks/n"}]}, {},
                     ["networkInterfaces[0].subnetwork"], id="network of another project"),
        pytest.param(GCP_INSTANCE, interface(networkAttachment="projects/q/a"), {},
                     ["networkInterfaces[0].networkAttachment"], id="interface into another network"),
        pytest.param(GCP_TEMPLATE, {**interface(), "disks": [{"sourceSnapshot": "s"}]}, {},
                     ["disks[0].sourceSnapshot"], id="disk of a snapshot"),
        pytest.param(GCP_INSTANCE, {**interface(), "attachedDisks": [{"source": "projects/q/d"}]}, {},
                     ["attachedDisks[0].source"], id="disk of others"),
        pytest.param(FIREWALL, {"sourceServiceAccounts": [EMAIL], "targetServiceAccounts": [EMAIL]}, {}, [],
                     id="firewall"),
        pytest.param(FIREWALL, {"sourceServiceAccounts": ["x@q.iam.gserviceaccount.com"],
                                "targetServiceAccounts": [EMAIL]}, {}, ["sourceServiceAccounts[0]"],
                     id="from machines of another project"),
        pytest.param(FIREWALL, {"sourceRanges": ["10.0.0.0/8"], "targetServiceAccounts": ["x@q"]}, {},
                     ["targetServiceAccounts[0]"], id="to machines of others"),
        pytest.param(FIREWALL, {"sourceRanges": ["10.0.0.0/8"]}, {}, ["targetServiceAccounts"], id="to all machines"),
        pytest.param(FIREWALL, {"sourceTags": ["x"], "targetServiceAccounts": [EMAIL]}, {}, ["sourceTags[0]"],
                     id="from machines with a tag"),
        pytest.param(FIREWALL, {"network": "projects/q/global/networks/n", "targetServiceAccounts": [EMAIL]}, {},
                     ["network"], id="firewall of another network"),
        pytest.param(NETWORK, {"autoCreateSubnetworks": False}, {}, [], id="network"),
        *(pytest.param(NETWORK, {"autoCreateSubnetworks": value}, {}, ["autoCreateSubnetworks"], id=f"auto {value}")
          for value in (None, True, UNKNOWN)),
        pytest.param(FRONT, {"backendService": "projects/q/b"}, {}, ["backendService"], id="front of others"),
        pytest.param(FRONT, {"target": "projects/q/serviceAttachments/s"}, {}, ["target"], id="front of a service"),
        pytest.param(BACKEND, {"backends": [{"group": "projects/q/g"}]}, {}, ["backends[0].group"], id="backend"),
        pytest.param(MEMBERS, {"instances": ["projects/q/i"]}, {}, ["instances[0]"], id="member"),
        pytest.param(GCP_RECORD, {"rrdatas": ["10.0.0.5"]}, {}, [], id="Google record"),
        pytest.param(GCP_RECORD, {"rrdatas": ["192.0.2.7"]}, {}, ["rrdatas[0]"], id="Google record of others"),
        pytest.param(GCP_INSTANCE, {**interface(), "bootDisk": {"kmsKeySelfLink": "projects/q/k"}}, {},
                     ["bootDisk.kmsKeySelfLink"], id="key of another project"),
        pytest.param(GCP_TEMPLATE, interface(subnetworkProject="q"), {}, ["networkInterfaces[0].subnetworkProject"],
                     id="the same name in another project"),
        pytest.param("gcp:compute/disk:Disk", {"image": "projects/q/i"}, {}, ["image"], id="disk of an image"),
        pytest.param("gcp:compute/reservation:Reservation", {"shareSettings": {"shareType": "SPECIFIC_PROJECTS"}}, {},
                     ["shareSettings"], id="capacity for others"),
        pytest.param(GCP_ZONE, {"privateVisibilityConfig": {"networks": []}, "forwardingConfig": {"x": 1}}, {},
                     ["forwardingConfig", "privateVisibilityConfig.networks"], id="names asked of others"),
        pytest.param(GCP_ZONE, {"visibility": "public"}, {}, ["privateVisibilityConfig"], id="public Google zone"),
    ],
)  # fmt: skip
def test_resources_refer_to_resources_of_the_plan(
    kind: str, props: dict[str, Any], depends: dict[str, tuple[str, ...]], paths: list[str]
) -> None:
    assert refused(kind, props, depends) == paths


def with_network(**network: Any) -> Context:
    fleet = {"account": "p", "network": {"kind": "given", **network}, "bucket": {"name": "given"}}
    return replace(DEV, region="us-central1", config={"gpu-fleet:fleet": json.dumps(fleet)})


@pytest.mark.parametrize(
    ("kind", "props", "passes"),
    [
        pytest.param(SG, {"vpcId": "vpc-7"}, True, id="network"),
        pytest.param(GROUP, {"vpcZoneIdentifiers": ["subnet-7"]}, True, id="subnet"),
        pytest.param(GROUP, {"vpcZoneIdentifiers": ["subnet-8"]}, False, id="another subnet"),
        pytest.param(ZONE, {"vpcs": [{"vpcId": "vpc-7"}]}, True, id="zone of the network"),
        pytest.param(OBJECT, {"bucket": "given"}, True, id="bucket"),
        pytest.param(GCP_TEMPLATE, interface(subnetwork="subnet-7"), True, id="Google subnetwork by name"),
        pytest.param(GCP_TEMPLATE, interface(subnetwork=LINK.replace("/gpu", "/subnet-7")), True, id="and by link"),
        pytest.param(GCP_TEMPLATE, interface(subnetwork=LINK.replace("/gpu", "/subnet-7").replace("/p/", "/q/")),
                     False, id="the same name in another project"),
        pytest.param(INSTANCE, {"vpcSecurityGroupIds": ["subnet-7"]}, False, id="no security group"),
    ],
)  # fmt: skip
def test_settings_may_name_network_subnets_and_bucket(kind: str, props: dict[str, Any], passes: bool) -> None:
    assert (refused(kind, props, context=with_network(id="vpc-7", subnets={"a": "subnet-7"})) == []) is passes


def test_an_excepted_resource_may_refer_to_anything() -> None:
    waiver = PolicyException(
        rule="resource-type-listed",
        type=INSTANCE,
        resource="it",
        owner="ann",
        reason="bastion",
        until=date(2999, 1, 1),
    )
    props = {"vpcSecurityGroupIds": ["sg-0123"]}
    assert refused(INSTANCE, props, context=replace(DEV, exceptions=(waiver,))) == []


@pytest.mark.parametrize("name", ["999999999999/sg-1", "sg-0123456789abcdef0"])
def test_a_planned_group_named_like_another_id_does_not_match_it(name: str) -> None:
    twin = Resource(type=SG, name="twin", urn="urn:twin", props={"name": name, "arn": arn("security-group", "sg-3")})
    it = Resource(type=INGRESS, name="it", urn="urn:it", props={"referencedSecurityGroupId": name})
    assert [violation.path for violation in RULE.check([twin, it], DEV)] == ["referencedSecurityGroupId"]


@pytest.mark.parametrize(
    ("kind", "props", "paths"),
    [
        pytest.param(VOLUME, {"region": "us-east-1"}, [], id="region of the settings"),
        pytest.param(VOLUME, {"region": "eu-west-1"}, ["region"], id="another region"),
        pytest.param(NETWORK, {"autoCreateSubnetworks": False, "project": "p"}, [], id="project of the settings"),
        pytest.param(NETWORK, {"autoCreateSubnetworks": False, "project": "q"}, ["project"], id="another project"),
        pytest.param(
            NETWORK, {"autoCreateSubnetworks": False, "project": UNKNOWN}, ["project"], id="unknown project"
        ),
    ],
)
def test_resources_are_created_where_the_settings_require(kind: str, props: dict[str, Any], paths: list[str]) -> None:
    config = {"gpu-fleet:fleet": json.dumps({"account": "p"}), "gcp:project": "p"}
    assert refused(kind, props, context=replace(DEV, config=config)) == paths


def test_a_message_names_property_value_and_allowed_values() -> None:
    it = Resource(type=INSTANCE, name="it", urn="urn:it", props={"vpcSecurityGroupIds": ["sg-0123"]})
    (violation,) = RULE.check([*PLAN, it], DEV)
    assert violation.sentence == (
        f"it ({INSTANCE}): vpcSecurityGroupIds[0] is 'sg-0123': must be a DefaultSecurityGroup or SecurityGroup of"
        " this plan, because the rules do not check others"
    )


def step(kind: str, name: str, inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:dev::gpu-fleet::{kind}::{name}"
    return {"op": "same", "urn": urn, "newState": {"type": kind, "urn": urn, "inputs": inputs, **more}}


@pytest.mark.parametrize(("group", "paths"), [("sg-1", []), ("sg-9", ["vpcSecurityGroupIds[0]"])])
def test_a_preview_without_the_engine_matches_existing_groups(group: str, paths: list[str]) -> None:
    made = step(SG, "one", {"description": "x"}, id="sg-1", outputs={"arn": arn("security-group", "sg-1")})
    sources = {"vpcSecurityGroupIds": [made["urn"]]}
    it = step(INSTANCE, "it", {"vpcSecurityGroupIds": [group]}, propertyDependencies=sources)
    found = resources_of(parse(json.dumps({"steps": [made, it], "changeSummary": {"same": 2}})))
    assert [violation.path for violation in RULE.check(found, DEV)] == paths


def test_every_checked_or_named_type_is_known() -> None:
    known = {*CREATED_TYPES, "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", PEERING}
    assert set(REFERENCES) - known == {"aws:ec2/securityGroupRule:SecurityGroupRule"}
    named = {kind for found in REFERENCES.values() for one in found for kind in one.of if one.of != NOTHING}
    assert named <= known


IMAGE = "projects/images/global/images/gpu-1"


@pytest.mark.parametrize(
    ("kind", "props", "paths"),
    [
        pytest.param(TEMPLATE, {**groups("sg-1"), "imageId": "ami-1"}, [], id="of machines"),
        pytest.param(TEMPLATE, {**groups("sg-1"), "imageId": "ami-9"}, ["imageId"], id="of others"),
        pytest.param(TEMPLATE, {**groups("sg-1"), "imageId": UNKNOWN}, ["imageId"], id="unknown"),
        pytest.param(INSTANCE, {"vpcSecurityGroupIds": ["sg-1"], "ami": IMAGE}, [], id="of control"),
        pytest.param(INSTANCE, {"vpcSecurityGroupIds": ["sg-1"], "ami": "ami-9"}, ["ami"], id="instance"),
        pytest.param(GCP_TEMPLATE, {**interface(), "disks": [{"sourceImage": IMAGE}, {"type": "SCRATCH"}]}, [],
                     id="Google template"),
        pytest.param(GCP_TEMPLATE, {**interface(), "disks": [{"sourceImage": IMAGE + "2"}]},
                     ["disks[0].sourceImage"], id="Google template of others"),
        pytest.param(GCP_INSTANCE, {**interface(), "bootDisk": {"initializeParams": {"image": "debian-12"}}},
                     ["bootDisk.initializeParams.image"], id="Google instance of others"),
    ],
)  # fmt: skip
def test_machines_start_from_the_images_of_the_settings(kind: str, props: dict[str, Any], paths: list[str]) -> None:
    fleet = {"machines": {"image": "ami-1"}, "control": {"image": IMAGE}}
    assert refused(kind, props, context=replace(DEV, config={"gpu-fleet:fleet": json.dumps(fleet)})) == paths
    assert refused(kind, props) == []


OTHER = {"region": "us-east-1", "version": "9.9.9"}


@pytest.mark.parametrize(
    ("props", "paths"),
    [
        pytest.param(OTHER, [], id="as the stack's"),
        pytest.param({**OTHER, "accessKey": "AKIA", "secretKey": "s"}, ["accessKey", "secretKey"], id="credentials"),
        pytest.param({**OTHER, "assumeRoles": [{"roleArn": "arn:x"}]}, ["assumeRoles"], id="role"),
        pytest.param({"region": "eu-west-1"}, ["region"], id="region"),
        pytest.param({**OTHER, "profile": UNKNOWN}, ["profile"], id="unknown"),
        pytest.param({**OTHER, "defaultTags": '{"tags": {"a": "b"}}'}, [], id="JSON of the configuration"),
    ],
)
def test_a_default_provider_must_match_the_stack_configuration(props: dict[str, Any], paths: list[str]) -> None:
    config = {"aws:region": "us-east-1", "aws:defaultTags": '{"tags":{"a":"b"}}'}
    it = Resource(type="pulumi:providers:aws", name="default_9_9_9", urn="urn:it", props=props)
    found = check([it], replace(DEV, config=config))
    assert [violation.path for rule, violation in found if rule.id == "resource-type-listed"] == paths
    assert all("AKIA" not in violation.sentence for _, violation in found)
