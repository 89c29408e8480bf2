"""Tests of rules against attempts to bypass them, and against values that a preview does not know."""

import base64
import bz2
import gzip
import json
import lzma
import subprocess
import sys
import zlib
from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest
from pulumi_policy import EnforcementLevel, StackValidationArgs, StackValidationPolicy

from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PolicyException
from policies.context import Context, ContextError, from_config
from policies.engine import policies
from policies.pack import RULES, check
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies.resources import (
    DEV,
    FIREWALL,
    GCP_TEMPLATE,
    GROUP,
    RESERVATION,
    SAFE_GCP,
    SAFE_TEMPLATE,
    TEMPLATE,
    TODAY,
    but,
    group,
    judged,
)
from tests.fixtures.stacks.settings_files import a_pool

KEY = "AKIA" + "I" * 16
ROLE, ROLE_POLICY = "aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy"
INSTANCE, OLD = "aws:ec2/instance:Instance", "aws:ec2/launchConfiguration:LaunchConfiguration"
LIST, RULE = "aws:ec2/managedPrefixList:ManagedPrefixList", "aws:ec2/securityGroupRule:SecurityGroupRule"
BY_ATTRIBUTES = {"instanceRequirements": {"acceleratorCount": {"min": 8}}}
HIERARCHY = "gcp:compute/networkFirewallPolicyRule:NetworkFirewallPolicyRule"


def b64(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def started_with(text: str | bytes) -> dict[str, Any]:
    return but(SAFE_TEMPLATE, userData=b64(text))


SAFE_INSTANCE = {
    "associatePublicIpAddress": False,
    "rootBlockDevice": {"encrypted": True},
    "metadataOptions": {"httpTokens": "required"},
}
SECRET, OPEN, PUBLIC = "no-secret-in-user-data", "no-open-ingress", "no-public-address"
ACCESS = "instance-access-managed"
FOLDED = "\n".join(b64("x" * 80 + f"\nkey={KEY}\n")[at : at + 60] for at in range(0, 200, 60))
MANY = "".join(f"{b64(f'word {number:03} of many')}, " for number in range(300))
DIGEST = "sha256 " + "4f" * 32


@pytest.mark.parametrize(
    ("kind", "props", "rule"),
    [
        # encoded secrets
        pytest.param(TEMPLATE, started_with(gzip.compress(f"export K={KEY}".encode())), SECRET, id="gzip"),
        pytest.param(TEMPLATE, started_with(lzma.compress(f"export K={KEY}".encode())), SECRET, id="xz"),
        pytest.param(TEMPLATE, started_with(bz2.compress(f"export K={KEY}".encode())), SECRET, id="bzip2"),
        pytest.param(TEMPLATE, started_with(zlib.compress(f"export K={KEY}".encode())), SECRET, id="zlib"),
        pytest.param(TEMPLATE, started_with(f"- {KEY.encode().hex()}"), SECRET, id="hexadecimal digits"),
        pytest.param(TEMPLATE, started_with(f"- {gzip.compress(KEY.encode()).hex()}"), SECRET, id="gzip in digits"),
        pytest.param(TEMPLATE, started_with(f"- {'0a' * 32}"), None, id="a digest"),
        pytest.param(
            TEMPLATE, started_with(lzma.compress(b" " * 5_000_000 + KEY.encode())), SECRET, id="too much within xz"
        ),
        pytest.param(TEMPLATE, started_with(f"content: {b64(f'K={KEY} # padding')}"), SECRET, id="base64 in it"),
        pytest.param(
            TEMPLATE, started_with(f"- {b64(gzip.compress(f'K={KEY}'.encode() * 3))}"), SECRET, id="gzip in base64"
        ),
        pytest.param(TEMPLATE, started_with(b64(b64(f"password: hunter2hunter2 {KEY}"))), SECRET, id="three layers"),
        pytest.param(TEMPLATE, started_with(f"Content-Type: text/plain\n\n{FOLDED}"), SECRET, id="MIME part"),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, userData=f"export K={KEY}"), SECRET, id="not encoded"),
        pytest.param(TEMPLATE, started_with("HF_TOKEN=abcdefgh12345678"), SECRET, id="name of a secret"),
        pytest.param(OLD, {**SAFE_INSTANCE, "userData": f"K={KEY}"}, SECRET, id="launch configuration"),
        pytest.param(
            GCP_TEMPLATE, but(SAFE_GCP, metadata={"enable-oslogin": "TRUE", "db_password": "hunter2hunter2"}),
            SECRET, id="key of metadata",
        ),
        pytest.param(TEMPLATE, started_with(gzip.compress(b"a" * 1_000_000)), None, id="a word without an end"),
        pytest.param(TEMPLATE, started_with(gzip.compress(b"eyJabcdefgh-" * 50_000)), None, id="many tokens"),
        pytest.param(TEMPLATE, started_with("git clone " + "x" * 40 + "+https://me:hunter2@host/"), SECRET, id="URL"),
        pytest.param(TEMPLATE, started_with(DIGEST + b64(bytes(range(256)))), None, id="digests and binaries"),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, userData=UNKNOWN), None, id="user data unknown"),
        pytest.param(GCP_TEMPLATE, but(SAFE_GCP, metadata=UNKNOWN), ACCESS, id="metadata unknown"),
        pytest.param(TEMPLATE, started_with(f"# Größe\nK={KEY}\n".encode("latin-1")), SECRET, id="not UTF-8"),
        pytest.param(TEMPLATE, started_with(MANY + b64(f"export K={KEY}")), SECRET, id="behind many wrapped words"),
        pytest.param(
            TEMPLATE, started_with(gzip.compress(b"x\n") + gzip.compress(KEY.encode())), SECRET, id="second member"
        ),
        pytest.param(
            TEMPLATE, started_with(gzip.compress(b" " * 5_000_000 + KEY.encode())), SECRET, id="too large to check"
        ),
        # inbound access
        pytest.param(RULE, {"type": "ingress", "ipv6CidrBlocks": ["::/0"]}, OPEN, id="IPv6"),
        pytest.param(RULE, {"type": "ingress", "cidrBlocks": ["128.0.0.0/1"]}, OPEN, id="half of everybody"),
        pytest.param(RULE, {"type": "ingress", "cidrBlocks": [UNKNOWN, "10.0.0.0/8"]}, OPEN, id="network unknown"),
        pytest.param(RULE, {"type": "egress", "cidrBlocks": ["0.0.0.0/0"]}, None, id="egress to all addresses"),
        pytest.param(LIST, {"entries": [{"cidr": "10.0.0.0/8"}, {"cidr": "0.0.0.0/0"}]}, OPEN, id="prefix list"),
        pytest.param("aws:ec2/managedPrefixListEntry:ManagedPrefixListEntry", {"cidr": "::/0"}, OPEN, id="its entry"),
        pytest.param("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", {"ingress": [{"ipv6CidrBlocks": ["::/0"]}]},
                     OPEN, id="default group"),
        pytest.param(FIREWALL, {"allows": [{"protocol": "tcp"}]}, OPEN, id="firewall without sources"),
        pytest.param(FIREWALL, {"sourceTags": ["router"]}, None, id="firewall by tags"),
        pytest.param(FIREWALL, {"sourceRanges": UNKNOWN}, OPEN, id="firewall unknown"),
        pytest.param(FIREWALL, {"denies": [{"protocol": "all"}], "sourceRanges": ["0.0.0.0/0"]}, None, id="denied"),
        pytest.param(HIERARCHY, {"action": "allow", "direction": "INGRESS", "match": {"srcIpRanges": ["0.0.0.0/0"]}},
                     OPEN, id="firewall policy"),
        pytest.param(FIREWALL, {"sourceRanges": [], "sourceTags": []}, OPEN, id="firewall with empty lists"),
        pytest.param(FIREWALL, {"direction": "", "sourceRanges": ["0.0.0.0/0"]}, OPEN, id="firewall inwards"),
        pytest.param("gcp:compute/networkFirewallPolicyWithRules:NetworkFirewallPolicyWithRules",
                     {"rules": [{"action": "allow", "match": {"srcIpRanges": ["0.0.0.0/0"]}}]},
                     OPEN, id="firewall policy with its rules"),
        pytest.param("aws:ec2/subnet:Subnet", {"assignIpv6AddressOnCreation": True}, PUBLIC, id="subnet of IPv6"),
        pytest.param("aws:ec2/eip:Eip", {"networkInterface": "eni-1"}, PUBLIC, id="address of an interface"),
        pytest.param("aws:lb/loadBalancer:LoadBalancer", {}, PUBLIC, id="load balancer"),
        pytest.param("aws:lb/loadBalancer:LoadBalancer", {"internal": True}, None, id="internal load balancer"),
        pytest.param("aws:ec2/eip:Eip", {"instance": UNKNOWN}, PUBLIC, id="address of an instance"),
        pytest.param("aws:ec2/eip:Eip", {"domain": "vpc"}, None, id="address of a gateway"),
        pytest.param("gcp:compute/forwardingRule:ForwardingRule", {"loadBalancingScheme": "EXTERNAL"}, PUBLIC,
                     id="Google front"),
        pytest.param("gcp:compute/instanceFromTemplate:InstanceFromTemplate",
                     but(SAFE_GCP, networkInterfaces=[{"accessConfigs": [{}]}]), PUBLIC, id="from a template"),
        pytest.param("aws:ec2/spotFleetRequest:SpotFleetRequest",
                     {"launchSpecifications": [but(SAFE_INSTANCE, associatePublicIpAddress=True)]}, PUBLIC,
                     id="spot fleet"),
        pytest.param(INSTANCE, but(SAFE_INSTANCE, ipv6AddressCount=1), PUBLIC, id="instance with IPv6"),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, networkInterfaces=[{"associatePublicIpAddress": UNKNOWN}]), PUBLIC,
                     id="address unknown"),
        # metadata and disks
        pytest.param(INSTANCE, but(SAFE_INSTANCE, metadataOptions={"httpEndpoint": "disabled"}), None, id="none"),
        pytest.param(
            INSTANCE, but(SAFE_INSTANCE, metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": "64"}),
            "metadata-protected", id="hops as text",
        ),
        pytest.param(INSTANCE, but(SAFE_INSTANCE, metadataOptions=UNKNOWN), "metadata-protected",
                     id="metadata options unknown"),
        pytest.param(INSTANCE, but(SAFE_INSTANCE, ebsBlockDevices=[{"encrypted": False}]), "disks-encrypted",
                     id="second disk"),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, blockDeviceMappings=[{"ebs": {"encrypted": UNKNOWN}}]),
                     "disks-encrypted", id="disk unknown"),
        pytest.param(GCP_TEMPLATE, but(SAFE_GCP, shieldedInstanceConfig=UNKNOWN), "metadata-protected",
                     id="shielded unknown"),
        # size limits
        pytest.param(GROUP, group("on-demand", maxSize="400", minSize="0"), "fallback-bounded",
                     id="size as text"),
        pytest.param(GROUP, group("On-Demand", maxSize=400), "gpu-group-owned-and-bounded", id="no capacity type"),
        pytest.param(GROUP, group(tags=UNKNOWN), "gpu-group-owned-and-bounded", id="tags unknown"),
        pytest.param(RESERVATION, {"endDateType": "limited", "endDate": "2026-11-20T00:00:00Z"},
                     "reservation-ends-or-is-reviewed", id="reservation that is over"),
    ],
)  # fmt: skip
def test_an_attack_with_one_resource_is_refused(kind: str, props: Mapping[str, Any], rule: str | None) -> None:
    found = {broken.id for broken, _ in judged([Resource(type=kind, name="it", props=props)], DEV)}
    assert found == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("kind", "props", "refused"),
    [
        pytest.param(TEMPLATE, {"instanceType": "p3.16xlarge"}, True, id="family that the catalogue lacks"),
        pytest.param(TEMPLATE, {"instanceType": "trn1.32xlarge"}, True, id="other accelerators"),
        pytest.param(TEMPLATE, {"instanceType": "m7i.large"}, False, id="no GPU"),
        pytest.param(TEMPLATE, {"instanceType": UNKNOWN}, False, id="unknown"),
        pytest.param(TEMPLATE, BY_ATTRIBUTES, True, id="by attributes"),
        pytest.param(
            GROUP,
            {
                "mixedInstancesPolicy": {
                    "launchTemplate": {"overrides": [{"instanceRequirements": {"vcpuCount": {"min": 1}}}]}
                }
            },
            True,
            id="group by attributes",
        ),
        pytest.param(
            GCP_TEMPLATE,
            {"machineType": "n1-standard-8", "guestAccelerators": [{"type": "nvidia-tesla-t4", "count": 4}]},
            True,
            id="GPUs that are added",
        ),
        pytest.param(
            GCP_TEMPLATE, {"machineType": "zones/us-central1-a/machineTypes/a3-highgpu-8g"}, True, id="link"
        ),
        pytest.param(
            "gcp:compute/reservation:Reservation",
            {
                "specificReservation": {
                    "instanceProperties": {
                        "machineType": "n1-standard-8",
                        "guestAccelerators": [{"acceleratorCount": 4}],
                    }
                }
            },
            True,
            id="GPUs added to what is reserved",
        ),
        pytest.param(
            "aws:ec2/fleet:Fleet",
            {"launchTemplateConfigs": [{"overrides": [{"instanceType": "p5.48xlarge"}]}]},
            True,
            id="fleet",
        ),
        pytest.param(
            "aws:ec2/fleet:Fleet",
            {"launchTemplateConfigs": [{"overrides": [BY_ATTRIBUTES]}]},
            True,
            id="fleet by attributes",
        ),
        pytest.param(GCP_TEMPLATE, {"machineType": "n1-standard-8"}, False, id="without them"),
    ],
)
def test_machine_types_that_bypass_the_allow_list_are_refused(
    kind: str, props: Mapping[str, Any], refused: bool
) -> None:
    context = Context(cloud=Cloud.AWS, environment="dev", today=TODAY, allowed_machine_types=frozenset({"g6.xlarge"}))
    found = {broken.id for broken, _ in check([Resource(type=kind, name="it", props=props)], context)}
    assert ("machine-type-allowed" in found) is refused


def test_an_expired_exception_is_reported_as_expired() -> None:
    ended = PolicyException(rule=OPEN, resource="*", owner="ann", reason="demo", until=date(2026, 11, 20))
    context = Context(environment="dev", today=TODAY, exceptions=(ended,))
    rule = Resource(type=RULE, name="web", props={"type": "ingress", "cidrBlocks": ["0.0.0.0/0"]})
    ((_, violation),) = judged([rule], context)
    assert violation.wrong == (
        "allows 3,702,188,032 public addresses of IPv4 (the exception of ann ended on 2026-11-20)"
    )


NEW_POOL = {**(THE_POOL := a_pool("chat", model="m")), "shape": "new", "engine": {**THE_POOL["engine"], "knob": 1}}
MODEL = {"name": "m", "source": "hf://a/b", "weights_gib": 3}


@pytest.mark.parametrize(
    ("fleet", "path"),
    [
        pytest.param({"policies": ["x"]}, "policies", id="policies that are not a map"),
        pytest.param({"policies": {"exceptions": "none"}}, "policies.exceptions", id="exceptions not in a list"),
        pytest.param({"budget": {"usd_per_month": "lots"}}, "budget.usd_per_month", id="budget without amount"),
        pytest.param({"models": [5]}, "models.0", id="model that is not a map"),
        pytest.param({"pools": [{**NEW_POOL, "max": "many"}]}, "pools.0.max", id="pool next to unknown keys"),
        pytest.param({"cloud": "azure"}, "cloud", id="unknown cloud"),
    ],
)
def test_invalid_settings_are_refused_and_readable_parts_are_checked(fleet: dict[str, Any], path: str) -> None:
    settings = {"cloud": "aws", "environment": "dev", "policies": {"machine_types": ["g5.xlarge"]}, **fleet}
    context = from_config({"gpu-fleet:fleet": json.dumps(settings), "aws:region": "us-east-1"}, TODAY)
    assert context.problems[0].startswith(f"gpu-fleet:fleet.{path}: ")
    assert context.environment == "dev"
    assert (context.allowed_machine_types is None) == ("policies" in fleet)
    assert {policy.name for policy in policies(context)} >= {"settings-known", *(rule.id for rule in RULES)}
    assert reported(context, "settings-known") == ["; ".join(context.problems)]


def test_an_exception_by_a_rules_earlier_id_is_an_error_that_names_the_new_one() -> None:
    old = PolicyException(rule="no-wildcard-iam", resource="it", owner="ann", reason="r", until=TODAY)
    context = Context(environment="dev", today=TODAY, exceptions=(old,))
    (message,) = reported(context, "settings-known")
    assert (
        message
        == "the exception for it: no-wildcard-iam is now iam-in-list; check whether the exception is still needed"
    )


def test_keys_of_a_newer_release_are_ignored_and_reported() -> None:
    settings = {"cloud": "aws", "pools": [NEW_POOL], "models": [MODEL], "policies": {"strict": True}, "quotas": []}
    context = from_config({"gpu-fleet:fleet": json.dumps(settings)}, TODAY)
    assert context.problems == ()
    assert context.model_gib == {"chat": 3}
    unknown = ("quotas", "pools.0.engine.knob", "pools.0.shape", "policies.strict")
    assert sorted(context.unknown) == sorted(f"gpu-fleet:fleet.{key}" for key in unknown)
    assert "settings-known" not in {policy.name for policy in policies(context)}
    (message,) = reported(context, "settings-all-known")
    assert all(key in message for key in context.unknown)
    (policy,) = [policy for policy in policies(context) if policy.name == "settings-all-known"]
    assert policy.enforcement_level is EnforcementLevel.ADVISORY


@pytest.mark.parametrize("text", ["{", "[]", "5", '"text"'])
def test_settings_that_are_not_a_map_are_an_error(text: str) -> None:
    with pytest.raises(ContextError, match="gpu-fleet:fleet: "):
        from_config({"gpu-fleet:fleet": text}, TODAY)


def test_the_rules_do_not_import_the_settings_model() -> None:
    asked = "import sys, policies.engine; print('pydantic' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=180, check=True)
    assert ran.stdout == "False\n"


def reported(context: Context, name: str) -> list[str]:
    """Return the violations that the stack policy with that name reports."""
    (policy,) = [policy for policy in policies(context) if policy.name == name]
    assert isinstance(policy, StackValidationPolicy)
    found: list[str] = []
    policy.validate(StackValidationArgs(resources=[]), lambda message, urn: found.append(message))
    return found


@pytest.mark.parametrize(
    "kind", sorted({TEMPLATE, GROUP, INSTANCE, OLD, ROLE, ROLE_POLICY, LIST, FIREWALL, RESERVATION})
)
def test_no_rule_fails_on_unknown_values(kind: str) -> None:
    names = {*SAFE_TEMPLATE, *SAFE_INSTANCE, *SAFE_GCP, *group(), "policy", "inlinePolicies", "assumeRolePolicy"}
    names |= {"entries", "sourceRanges", "instanceType", "endDate", "ingress"}
    unknown = Resource(type=kind, name="it", props=dict.fromkeys(names, UNKNOWN))
    listed = Resource(type=kind, name="it", props={name: [UNKNOWN, {"key": UNKNOWN}] for name in names})
    for rule in RULES:
        assert isinstance(rule.check([unknown, listed], DEV), list)
