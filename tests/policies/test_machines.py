"""Tests of the start configuration of instances: attacks on the rules on addresses, metadata, access and disks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.settings.environment import PolicyException
from policies import exposure, machines
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies.resources import DEV, GCP_TEMPLATE, SAFE_GCP, SAFE_TEMPLATE, TEMPLATE, TODAY

RULES = (*exposure.RULES, *machines.RULES)
PUBLIC, METADATA, ACCESS, DISKS = (rule.id for rule in RULES)
BY_ID = {rule.id: rule for rule in RULES}
INSTANCE, GCP_INSTANCE = "aws:ec2/instance:Instance", "gcp:compute/instance:Instance"
SUBNET, DEFAULT_SUBNET = "aws:ec2/subnet:Subnet", "aws:ec2/defaultSubnet:DefaultSubnet"
FRONT, GCP_SUBNET = "gcp:compute/forwardingRule:ForwardingRule", "gcp:compute/subnetwork:Subnetwork"
GCP_GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"
PROJECT = "gcp:compute/projectMetadata:ProjectMetadata"
PROJECT_ITEM = "gcp:compute/projectMetadataItem:ProjectMetadataItem"
FROM_TEMPLATE = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
PRIVATE = {"associatePublicIpAddress": "false"}
ROOT = {"deviceName": "/dev/sda1", "ebs": {"encrypted": "true"}}
REQUIRED = {"httpTokens": "required"}
SAFE_INSTANCE: dict[str, Any] = {
    "associatePublicIpAddress": False,
    "metadataOptions": REQUIRED,
    "rootBlockDevice": {"encrypted": True},
}
SHIELDED = SAFE_GCP["shieldedInstanceConfig"]
LOGIN = {"enable-oslogin": "TRUE"}
COMPUTE_DEFAULT = "123456-compute@developer.gserviceaccount.com"


def template(**changes: Any) -> tuple[str, Mapping[str, Any]]:
    return TEMPLATE, {**SAFE_TEMPLATE, **changes}


def instance(**changes: Any) -> tuple[str, Mapping[str, Any]]:
    return INSTANCE, {**SAFE_INSTANCE, **changes}


def google(kind: str = GCP_TEMPLATE, **changes: Any) -> tuple[str, Mapping[str, Any]]:
    return kind, {**SAFE_GCP, **changes}


def found(kind: str, props: Mapping[str, Any]) -> set[tuple[str, str]]:
    resource = Resource(type=kind, name="it", urn="urn:it", props=props)
    return {(rule.id, violation.path) for rule in RULES for violation in rule.check([resource], DEV)}


@pytest.mark.parametrize(
    ("resource", "rule", "path"),
    [
        pytest.param(template(networkInterfaces=[]), PUBLIC, "networkInterfaces", id="no interface"),
        pytest.param(template(networkInterfaces=UNKNOWN), PUBLIC, "networkInterfaces", id="unknown interfaces"),
        pytest.param(template(networkInterfaces=[PRIVATE, UNKNOWN]), PUBLIC, "networkInterfaces[1]",
                     id="an unknown interface"),
        pytest.param(template(networkInterfaces=[PRIVATE, {}]), PUBLIC,
                     "networkInterfaces[1].associatePublicIpAddress", id="second interface"),
        pytest.param(template(networkInterfaces=[{"associatePublicIpAddress": UNKNOWN}]), PUBLIC,
                     "networkInterfaces[0].associatePublicIpAddress", id="unknown address"),
        pytest.param(template(networkInterfaces=[{**PRIVATE, "primaryIpv6": "true"}]), PUBLIC,
                     "networkInterfaces[0].primaryIpv6", id="primary IPv6"),
        pytest.param(template(networkInterfaces=[{**PRIVATE, "ipv6AddressCount": UNKNOWN}]), PUBLIC,
                     "networkInterfaces[0].ipv6AddressCount", id="unknown number of IPv6 addresses"),
        pytest.param(template(networkInterfaces=[{**PRIVATE, "networkInterfaceId": "eni-1"}]), PUBLIC,
                     "networkInterfaces[0].networkInterfaceId", id="interface of another"),
        pytest.param(template(networkInterfaces=[{**PRIVATE, "associateCarrierIpAddress": "true"}]), PUBLIC,
                     "networkInterfaces[0].associateCarrierIpAddress", id="carrier address"),
        pytest.param(instance(associatePublicIpAddress=UNKNOWN), PUBLIC, "associatePublicIpAddress",
                     id="instance, unknown"),
        pytest.param(instance(networkInterfaces=[{"networkInterfaceId": "eni-1"}]), PUBLIC, "networkInterfaces",
                     id="instance with an interface of another"),
        pytest.param(instance(enablePrimaryIpv6=True), PUBLIC, "enablePrimaryIpv6", id="instance with IPv6"),
        pytest.param((SUBNET, {"mapPublicIpOnLaunch": UNKNOWN}), PUBLIC, "mapPublicIpOnLaunch", id="unknown subnet"),
        pytest.param((SUBNET, {"ipv6Native": True}), PUBLIC, "ipv6Native", id="subnet of IPv6 alone"),
        pytest.param((SUBNET, {"mapPublicIpOnLaunch": True, "tags": {"gpu-fleet:holds": "gateways"}}), PUBLIC,
                     "mapPublicIpOnLaunch", id="a tag with the value gateways"),
        pytest.param((DEFAULT_SUBNET, {}), PUBLIC, "mapPublicIpOnLaunch", id="default subnet"),
        *(
            pytest.param((f"aws:{name}/loadBalancer:LoadBalancer", value), PUBLIC, "internal", id=f"{name} {value}")
            for name in ("lb", "alb", "elb")
            for value in ({}, {"internal": False}, {"internal": UNKNOWN})
        ),
        pytest.param((FRONT, {"loadBalancingScheme": UNKNOWN}), PUBLIC, "loadBalancingScheme", id="unknown front"),
        pytest.param((FRONT, {"loadBalancingScheme": "EXTERNAL_PASSTHROUGH"}), PUBLIC, "loadBalancingScheme",
                     id="a future scheme"),
        pytest.param((GCP_SUBNET, {"ipv6AccessType": "EXTERNAL"}), PUBLIC, "ipv6AccessType", id="external subnet"),
        pytest.param(google(networkInterfaces=[]), PUBLIC, "networkInterfaces", id="no interface, Google"),
        pytest.param(google(networkInterfaces=[{"accessConfigs": UNKNOWN}]), PUBLIC,
                     "networkInterfaces[0].accessConfigs", id="unknown access configs"),
        pytest.param((GCP_GROUP, {"statefulExternalIps": [{"interfaceName": "nic0"}]}), PUBLIC, "statefulExternalIps",
                     id="external addresses of a group"),
        pytest.param(google(networkInterfaces=[{"stackType": "IPV4_IPV6"}]), PUBLIC,
                     "networkInterfaces[0].stackType", id="both stacks"),
        pytest.param(template(metadataOptions={}), METADATA, "metadataOptions.httpTokens", id="empty options"),
        pytest.param(template(metadataOptions={"httpTokens": UNKNOWN}), METADATA, "metadataOptions.httpTokens",
                     id="unknown tokens"),
        pytest.param(template(metadataOptions={**REQUIRED, "httpPutResponseHopLimit": 2}), METADATA,
                     "metadataOptions.httpPutResponseHopLimit", id="two hops on a GPU instance"),
        pytest.param(template(metadataOptions={**REQUIRED, "httpPutResponseHopLimit": UNKNOWN}), METADATA,
                     "metadataOptions.httpPutResponseHopLimit", id="unknown hops"),
        pytest.param(template(metadataOptions={**REQUIRED, "instanceMetadataTags": "enabled"}), METADATA,
                     "metadataOptions.instanceMetadataTags", id="tags in the metadata"),
        pytest.param(instance(metadataOptions={**REQUIRED, "httpPutResponseHopLimit": 3}), METADATA,
                     "metadataOptions.httpPutResponseHopLimit", id="three hops"),
        pytest.param(google(shieldedInstanceConfig={**SHIELDED, "enableSecureBoot": UNKNOWN}), METADATA,
                     "shieldedInstanceConfig.enableSecureBoot", id="unknown secure boot"),
        pytest.param(template(keyName="ann"), ACCESS, "keyName", id="key"),
        pytest.param(instance(keyName=UNKNOWN), ACCESS, "keyName", id="unknown key"),
        pytest.param(instance(sourceDestCheck=False), ACCESS, "sourceDestCheck", id="forwards packets"),
        pytest.param(google(metadata={**LOGIN, "ssh-keys": "ann:ssh-rsa A"}), ACCESS, "metadata.ssh-keys",
                     id="SSH keys"),
        pytest.param(google(GCP_INSTANCE, metadata={"sshKeys": "ann:ssh-rsa A"}), ACCESS, "metadata.sshKeys",
                     id="SSH keys of an instance"),
        pytest.param(google(metadata={"enable-oslogin": "FALSE"}), ACCESS, "metadata.enable-oslogin",
                     id="no OS Login"),
        pytest.param(google(metadata=None), ACCESS, "metadata.enable-oslogin", id="nothing on OS Login"),
        pytest.param(google(metadata={**LOGIN, "startup-script-url": "gs://others/boot.sh"}), ACCESS,
                     "metadata.startup-script-url", id="script of others"),
        pytest.param(google(metadata={**LOGIN, "serial-port-enable": "1"}), ACCESS, "metadata.serial-port-enable",
                     id="serial port"),
        pytest.param(google(metadata={**LOGIN, "serial-port-enable": UNKNOWN}), ACCESS, "metadata.serial-port-enable",
                     id="unknown serial port"),
        pytest.param((PROJECT, {"metadata": {"ssh-keys": "ann:ssh-rsa A"}}), ACCESS, "metadata.ssh-keys",
                     id="SSH keys of the project"),
        pytest.param((PROJECT_ITEM, {"key": "enable-oslogin", "value": "FALSE"}), ACCESS, "value.enable-oslogin",
                     id="no OS Login in the project"),
        pytest.param((GCP_GROUP, {"allInstancesConfig": {"metadata": {"ssh-keys": "ann:ssh-rsa A"}}}), ACCESS,
                     "allInstancesConfig.metadata.ssh-keys", id="SSH keys of a group"),
        pytest.param(google(serviceAccount={"scopes": ["cloud-platform"]}), ACCESS, "serviceAccount.email",
                     id="default account, not named"),
        pytest.param(google(serviceAccount={"email": COMPUTE_DEFAULT}), ACCESS, "serviceAccount.email",
                     id="default account, named"),
        pytest.param(google(canIpForward=True), ACCESS, "canIpForward", id="forwards packets, Google"),
        pytest.param(template(blockDeviceMappings=[]), DISKS, "blockDeviceMappings", id="no mapping"),
        pytest.param(template(blockDeviceMappings=UNKNOWN), DISKS, "blockDeviceMappings", id="unknown mappings"),
        pytest.param(template(blockDeviceMappings=[{**ROOT, "deviceName": "/dev/sdf"}]), DISKS, "blockDeviceMappings",
                     id="a data disk alone"),
        pytest.param(template(blockDeviceMappings=[ROOT, {"deviceName": "/dev/sdf"}]), DISKS,
                     "blockDeviceMappings[1].ebs", id="mapping without a disk"),
        pytest.param(template(blockDeviceMappings=[{**ROOT, "ebs": {"encrypted": UNKNOWN}}]), DISKS,
                     "blockDeviceMappings[0].ebs.encrypted", id="unknown encryption"),
        pytest.param(instance(rootBlockDevice=None), DISKS, "rootBlockDevice.encrypted", id="no root disk"),
        pytest.param(instance(ebsBlockDevices=UNKNOWN), DISKS, "ebsBlockDevices", id="unknown disks"),
        pytest.param(instance(ebsBlockDevices=[UNKNOWN]), DISKS, "ebsBlockDevices[0].encrypted", id="unknown disk"),
        pytest.param(("aws:ebs/volume:Volume", {"encrypted": UNKNOWN}), DISKS, "encrypted", id="unknown volume"),
        pytest.param(("aws:ebs/snapshotCopy:SnapshotCopy", {}), DISKS, "encrypted", id="copy of a snapshot"),
        pytest.param(("aws:ebs/encryptionByDefault:EncryptionByDefault", {"enabled": False}), DISKS, "enabled",
                     id="encryption by default"),
    ],
)  # fmt: skip
def test_unsafe_unknown_or_missing_values_are_refused_with_their_property(
    resource: tuple[str, Mapping[str, Any]], rule: str, path: str
) -> None:
    assert found(*resource) == {(rule, path)}


EFA = [{**PRIVATE, "interfaceType": "efa", "networkCardIndex": n, "deviceIndex": min(n, 1)} for n in range(4)]


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(template(), id="template"),
        pytest.param(template(networkInterfaces=EFA), id="interfaces of EFA"),
        pytest.param(template(blockDeviceMappings=[{**ROOT, "deviceName": "/dev/xvda"}]), id="root disk of an image"),
        pytest.param(template(keyName=""), id="no key"),
        pytest.param(instance(), id="bastion"),
        pytest.param(
            instance(metadataOptions={**REQUIRED, "httpPutResponseHopLimit": 2}), id="bastion with containers"
        ),
        pytest.param(instance(ebsBlockDevices=[{"encrypted": "true"}]), id="second disk"),
        pytest.param((SUBNET, {"mapPublicIpOnLaunch": False}), id="private subnet"),
        pytest.param((DEFAULT_SUBNET, {"mapPublicIpOnLaunch": False}), id="default subnet that is closed"),
        pytest.param((FRONT, {"loadBalancingScheme": "INTERNAL"}), id="internal front"),
        pytest.param(google(), id="Google template"),
        pytest.param(google(GCP_INSTANCE, metadata=None), id="Google bastion, with its project's login"),
        pytest.param((FROM_TEMPLATE, {}), id="its source is checked"),
        pytest.param(("aws:ebs/encryptionByDefault:EncryptionByDefault", {}), id="encryption by default"),
    ],
)
def test_safe_configurations_pass(resource: tuple[str, Mapping[str, Any]]) -> None:
    assert found(*resource) == set()


ACCOUNT, PROFILE = "gcp:serviceaccount/account:Account", "aws:iam/instanceProfile:InstanceProfile"
GPU = "gpu@p.iam.gserviceaccount.com"
GPU_ARN = "arn:aws:iam::111122223333:instance-profile/gpu"


@pytest.mark.parametrize(
    ("kind", "value", "source", "made", "passes"),
    [
        pytest.param(GCP_TEMPLATE, {"email": UNKNOWN}, "urn:made", {"email": UNKNOWN}, True, id="planned account"),
        pytest.param(GCP_TEMPLATE, {"email": UNKNOWN}, "urn:other", {"email": UNKNOWN}, False,
                     id="of something else"),
        pytest.param(GCP_TEMPLATE, {"email": GPU}, "urn:made", {"email": GPU}, True, id="account that is there"),
        pytest.param(GCP_TEMPLATE, {"email": "admin@p.iam"}, "", {"email": GPU}, False, id="account of others"),
        pytest.param(GCP_TEMPLATE, {"email": "admin@p.iam"}, "urn:made", {"email": UNKNOWN}, False,
                     id="account of others, next to ours"),
        pytest.param(GCP_TEMPLATE, {"email": GPU}, "urn:made", {}, True, id="inputs alone"),
        pytest.param(TEMPLATE, {"arn": UNKNOWN}, "urn:made", {"arn": UNKNOWN}, True, id="profile to be created"),
        pytest.param(TEMPLATE, {"arn": UNKNOWN}, "", {"arn": UNKNOWN}, False, id="profile from nowhere"),
        pytest.param(TEMPLATE, {"arn": GPU_ARN, "name": UNKNOWN}, "urn:made", {"arn": GPU_ARN}, True, id="by ARN"),
        pytest.param(TEMPLATE, {"name": "admin"}, "", {"name": "gpu"}, False, id="profile of others"),
        pytest.param(INSTANCE, "gpu", "", {"name": "gpu", "arn": UNKNOWN}, True, id="by name"),
        pytest.param(INSTANCE, "admin", "", {"name": "gpu", "arn": UNKNOWN}, False, id="instance as others"),
        pytest.param(INSTANCE, UNKNOWN, "", {}, True, id="what a provider leaves unknown"),
    ],
)  # fmt: skip
def test_instances_use_identities_of_the_plan(
    kind: str, value: Any, source: str, made: dict[str, Any], passes: bool
) -> None:
    key = "serviceAccount" if kind == GCP_TEMPLATE else "iamInstanceProfile"
    plan = [
        Resource(type=ACCOUNT if kind == GCP_TEMPLATE else PROFILE, name="gpu", urn="urn:made", props=made),
        Resource(type="gpu-fleet:gcp:Other", name="other", urn="urn:other"),
        Resource(type=kind, name="it", urn="urn:it", props={key: value}, depends={key: (source,)} if source else {}),
    ]
    found = replace(BY_ID[ACCESS], check_resource=None).check(plan, DEV)
    assert (found == []) == passes


def test_an_exception_for_an_instance_covers_its_profile() -> None:
    props = {**SAFE_INSTANCE, "iamInstanceProfile": "ssm"}
    bastion = Resource(type=INSTANCE, name="bastion", urn="urn:b", props=props)
    waived = PolicyException(
        rule="resource-type-listed", type=INSTANCE, resource="bastion", owner="ann", reason="way in", until=TODAY
    )
    assert BY_ID[ACCESS].check([bastion], DEV) != []
    assert BY_ID[ACCESS].check([bastion], replace(DEV, exceptions=(waived,))) == []
