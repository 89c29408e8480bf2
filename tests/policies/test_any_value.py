"""Tests that no rule raises an exception, whatever values its properties have."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import exposure, ingress, machines, references, storage, templates
from policies.resource import AWS_GROUP, FLEETS, GCP_GROUPS, GCP_TEMPLATES, RUNS_INSTANCES, UNKNOWN, Resource
from tests.fixtures.policies.resources import DEV

RULES = tuple(
    rule for module in (exposure, ingress, machines, references, storage, templates) for rule in module.RULES
)
TYPES = sorted(
    {
        *(*RUNS_INSTANCES, *GCP_TEMPLATES, *FLEETS, *GCP_GROUPS, AWS_GROUP),
        *("aws:ec2/subnet:Subnet", "aws:lb/loadBalancer:LoadBalancer", "aws:ec2/eip:Eip"),
        *("aws:ec2/securityGroup:SecurityGroup", "aws:ec2/securityGroupRule:SecurityGroupRule"),
        *("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "aws:ec2/managedPrefixList:ManagedPrefixList"),
        *("aws:s3/bucket:Bucket", "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock", "aws:sqs/queue:Queue"),
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        *("gcp:compute/firewall:Firewall", "gcp:compute/networkFirewallPolicyRule:NetworkFirewallPolicyRule"),
        "gcp:compute/networkFirewallPolicyWithRules:NetworkFirewallPolicyWithRules",
        *("gcp:storage/bucket:Bucket", "gcp:compute/projectMetadataItem:ProjectMetadataItem"),
    }
)
KEYS = [
    *("networkInterfaces", "metadataOptions", "blockDeviceMappings", "ebs", "encrypted", "rootBlockDevice"),
    *("ebsBlockDevices", "metadata", "serviceAccount", "email", "shieldedInstanceConfig", "httpTokens", "keyName"),
    *("httpPutResponseHopLimit", "ingress", "type", "cidrBlocks", "prefixListIds", "prefixListId", "cidrIpv4", "arn"),
    *("entries", "cidr", "allows", "denies", "direction", "sourceRanges", "sourceTags", "action", "match", "rules"),
    *("srcIpRanges", "srcRegionCodes", "srcNetworkScope", "config", "bucket", "acl", "versioning", "enabled", "key"),
    *("mixedInstancesPolicy", "launchTemplate", "launchTemplateSpecification", "overrides", "id", "name", "version"),
    *("launchTemplateConfigs", "launchSpecifications", "versions", "instanceTemplate", "latestVersion", "selfLink"),
    *("allInstancesConfig", "internal", "loadBalancingScheme", "mapPublicIpOnLaunch", "instance", "deviceName"),
]  # fmt: skip
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.just(UNKNOWN), st.floats(), st.integers(-1, 70)),
    st.sampled_from(
        ["", "ingress", "allow", "required", "0.0.0.0/0", "::/0", "true", "lt-1", "https://x/projects/y", "7"]
    ),
)


def held(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)


VALUES = st.recursive(LEAVES, held, max_leaves=12)


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=40)
@given(props=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8), min_size=2, max_size=3))
def test_no_rule_fails_on_any_value(kind: str, props: list[dict[str, Any]]) -> None:
    depends = dict.fromkeys(KEYS, ("urn:0", "urn:absent"))
    plan = [
        Resource(type=kind, name="it", urn=f"urn:{index}", props=one, depends=depends)
        for index, one in enumerate(props)
    ]
    for rule in RULES:
        assert all(violation.sentence for violation in rule.check(plan, DEV))
