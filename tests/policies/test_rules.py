"""Tests of each rule: configurations that it refuses, and configurations that it allows."""

import base64
import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, unknown_checking_proxy

from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PolicyException
from policies.context import Context, from_config
from policies.pack import RULES, check
from policies.resource import UNKNOWN, Properties, Resource, plain
from tests.fixtures.policies.resources import (
    DEV,
    FIREWALL,
    GCP_REGIONAL,
    GCP_TEMPLATE,
    GCP_ZONAL,
    GROUP,
    INGRESS,
    RESERVATION,
    SAFE_GCP,
    SAFE_TEMPLATE,
    TEMPLATE,
    TODAY,
    broken_rules,
    but,
    group,
)
from tests.fixtures.stacks.settings_files import a_pool


def user_data(text: str) -> dict[str, Any]:
    return but(SAFE_TEMPLATE, userData=base64.b64encode(text.encode()).decode())


PUBLIC_INTERFACE = [{"associatePublicIpAddress": "true"}]
IPV6_INTERFACE = [{"associatePublicIpAddress": "false", "ipv6AddressCount": 1}]
UNSHIELDED = {"enableSecureBoot": False, "enableVtpm": True, "enableIntegrityMonitoring": True}


@pytest.mark.parametrize(
    ("kind", "props", "rule"),
    [
        pytest.param(TEMPLATE, SAFE_TEMPLATE, None, id="safe template"),
        pytest.param(
            TEMPLATE, but(SAFE_TEMPLATE, networkInterfaces=PUBLIC_INTERFACE), "no-public-address", id="public"
        ),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, networkInterfaces=None), "no-public-address", id="subnet decides"),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, networkInterfaces=[{}]), "no-public-address", id="nothing set"),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, networkInterfaces=IPV6_INTERFACE), "no-public-address", id="IPv6"),
        pytest.param("aws:ec2/subnet:Subnet", {"mapPublicIpOnLaunch": True}, "no-public-address", id="public subnet"),
        pytest.param("aws:ec2/subnet:Subnet", {"cidrBlock": "10.0.0.0/24"}, None, id="private subnet"),
        pytest.param(
            "aws:ec2/subnet:Subnet",
            {"mapPublicIpOnLaunch": True, "tags": {"gpu-fleet:holds": "gateways"}},
            "no-public-address",
            id="public subnet that calls itself one of gateways",
        ),
        pytest.param(GCP_TEMPLATE, SAFE_GCP, None, id="safe Google template"),
        pytest.param(
            GCP_TEMPLATE,
            but(SAFE_GCP, networkInterfaces=[{"accessConfigs": [{}]}]),
            "no-public-address",
            id="external",
        ),
        pytest.param(
            GCP_TEMPLATE, but(SAFE_GCP, shieldedInstanceConfig=UNSHIELDED), "metadata-protected", id="no vTPM"
        ),
        pytest.param(GCP_TEMPLATE, but(SAFE_GCP, labels={}), "gpu-group-owned-and-bounded", id="no labels"),
        pytest.param(
            GCP_TEMPLATE, but(SAFE_GCP, labels={}, machineType="e2-small"), None, id="small machine needs no pool"
        ),
        pytest.param(INGRESS, {"cidrIpv4": "0.0.0.0/0"}, "no-open-ingress", id="open to all"),
        pytest.param(INGRESS, {"cidrIpv6": "::/0"}, "no-open-ingress", id="open to all IPv6"),
        pytest.param(INGRESS, {"cidrIpv4": "10.0.0.0/8"}, None, id="private clients"),
        pytest.param(
            "aws:ec2/securityGroup:SecurityGroup",
            {"ingress": [{"cidrBlocks": ["10.0.0.0/8", "0.0.0.0/0"]}]},
            "no-open-ingress",
            id="one of two is open",
        ),
        pytest.param(
            "aws:ec2/securityGroup:SecurityGroup", {"egress": [{"cidrBlocks": ["0.0.0.0/0"]}]}, None, id="egress"
        ),
        pytest.param(FIREWALL, {"sourceRanges": ["0.0.0.0/0"]}, "no-open-ingress", id="open firewall"),
        pytest.param(FIREWALL, {"direction": "EGRESS", "sourceRanges": ["0.0.0.0/0"]}, None, id="egress firewall"),
        pytest.param(FIREWALL, {"sourceRanges": ["35.235.240.0/20"]}, None, id="IAP only"),
        pytest.param(
            TEMPLATE,
            but(SAFE_TEMPLATE, metadataOptions={"httpTokens": "optional"}),
            "metadata-protected",
            id="IMDSv1",
        ),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, metadataOptions=None), "metadata-protected", id="nothing on IMDS"),
        pytest.param(
            TEMPLATE,
            but(SAFE_TEMPLATE, metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": 64.0}),
            "metadata-protected",
            id="64 hops",
        ),
        pytest.param(
            TEMPLATE, but(SAFE_TEMPLATE, blockDeviceMappings=[{"ebs": {}}]), "disks-encrypted", id="plain disk"
        ),
        pytest.param(TEMPLATE, but(SAFE_TEMPLATE, blockDeviceMappings=None), "disks-encrypted", id="image decides"),
        pytest.param("aws:ebs/volume:Volume", {"size": 10.0}, "disks-encrypted", id="plain volume"),
        pytest.param("aws:ebs/volume:Volume", {"size": 10.0, "encrypted": True}, None, id="encrypted volume"),
        pytest.param(TEMPLATE, user_data("export K=AKIAIOSFODNN7EXAMPLE"), "no-secret-in-user-data", id="AWS key"),
        pytest.param(TEMPLATE, user_data("HF=hf_" + "a" * 34), "no-secret-in-user-data", id="hub token"),
        pytest.param(TEMPLATE, user_data("password: hunter2hunter2"), "no-secret-in-user-data", id="password"),
        pytest.param(TEMPLATE, user_data("u=postgres://a:s3cret@db/x"), "no-secret-in-user-data", id="URL password"),
        pytest.param(
            TEMPLATE, user_data("-----BEGIN RSA PRIVATE KEY-----"), "no-secret-in-user-data", id="private key"
        ),
        pytest.param(TEMPLATE, user_data('"token": "$TOKEN"'), None, id="a variable is not a secret"),
        pytest.param(
            TEMPLATE,
            user_data('"engine_key": "gcp-secret:projects/p-1/secrets/gpu-fleet-prod-engine-key"'),
            None,
            id="a reference is not a secret",
        ),
        pytest.param(TEMPLATE, user_data("secret: hunter2hunter2"), "no-secret-in-user-data", id="secret"),
        pytest.param(
            GCP_TEMPLATE,
            but(SAFE_GCP, metadata={"enable-oslogin": "TRUE", "startup-script": "x=ghp_" + "b" * 36}),
            "no-secret-in-user-data",
            id="Google metadata",
        ),
        pytest.param(GROUP, group(maxSize=None), "gpu-group-owned-and-bounded", id="no limit"),
        pytest.param(GROUP, group(maxSize=UNKNOWN), None, id="limit unknown in a preview"),
        pytest.param(GROUP, group(tags=[]), "gpu-group-owned-and-bounded", id="no tags"),
        pytest.param(GROUP, group("on-demand", maxSize=400.0), "fallback-bounded", id="400 on-demand"),
        pytest.param(
            RESERVATION, {"instanceType": "g6.xlarge"}, "reservation-ends-or-is-reviewed", id="without an end"
        ),
        pytest.param(RESERVATION, {"endDateType": "limited"}, None, id="ends"),
        pytest.param(RESERVATION, {"tags": {"gpu-fleet:review-by": "2027-01-01"}}, None, id="reviewed"),
        pytest.param(
            RESERVATION,
            {"tags": {"gpu-fleet:review-by": "2026-11-20"}},
            "reservation-ends-or-is-reviewed",
            id="review is overdue",
        ),
    ],
)
def test_each_rule_accepts_or_refuses_one_resource(kind: str, props: dict[str, Any], rule: str | None) -> None:
    found = broken_rules(Resource(type=kind, name="it", props=props), context=DEV)
    assert found == ([rule] if rule else [])


def spot(name: str, *machines: str) -> Resource:
    return Resource(type=GROUP, name=name, props=group(machines=machines))


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        pytest.param([spot("a", "g6.xlarge", "g5.xlarge"), spot("b", "g6.xlarge", "g5.xlarge")], 0, id="spread"),
        pytest.param([spot("a", "g6.xlarge", "g5.xlarge")], 1, id="one zone"),
        pytest.param([spot("a", "g6.xlarge"), spot("b", "g6.xlarge")], 1, id="one machine type"),
        pytest.param([spot("a", "g6.xlarge")], 2, id="one of each"),
        pytest.param([Resource(type=GROUP, name="a", props=group("on-demand"))], 0, id="no spot"),
    ],
)
def test_spot_of_prod_is_spread(resources: list[Resource], count: int) -> None:
    assert broken_rules(*resources) == ["spot-spread"] * count
    assert broken_rules(*resources, context=Context(environment="dev", today=TODAY)) == []


def google_spot(**places: Any) -> list[Resource]:
    """Return a pool's spot template and groups by name, each with its `zone`, or with its zones if it is regional."""
    urn = "urn:template"
    labels = but(SAFE_GCP["labels"], **{"gpu-fleet-environment": "prod"})
    template = Resource(type=GCP_TEMPLATE, name="chat-spot", urn=urn, props=but(SAFE_GCP, labels=labels))
    groups: list[Resource] = []
    for name, place in places.items():
        is_zonal = isinstance(place, str) or place is UNKNOWN
        props = {
            "versions": [{"instanceTemplate": UNKNOWN}],
            "zone" if is_zonal else "distributionPolicyZones": place,
        }
        kind = GCP_ZONAL if is_zonal else GCP_REGIONAL
        depends = {"versions": (urn,)}
        groups.append(Resource(type=kind, name=name, urn=f"urn:{name}", props=props, depends=depends))
    return [template, *groups]


@pytest.mark.parametrize(
    ("resources", "refused"),
    [
        pytest.param(google_spot(a="us-central1-a"), ["a"], id="one zone"),
        pytest.param(google_spot(a="us-central1-a", b="us-central1-a"), ["a"], id="one zone twice"),
        pytest.param(google_spot(a="us-central1-a", b="us-central1-b"), [], id="two zones"),
        pytest.param(google_spot(a="us-central1-a", b=UNKNOWN), [], id="a zone that a preview does not know"),
        pytest.param(google_spot(r=["us-central1-a", "us-central1-b"]), [], id="regional"),
        pytest.param(google_spot(r=["us-central1-a"]), ["r"], id="regional, over one zone"),
        pytest.param(google_spot(r=None), [], id="regional, wherever Google likes"),
        pytest.param(google_spot(a="us-central1-a")[1:], [], id="template of another program"),
    ],
)
def test_spot_of_prod_is_spread_on_google(resources: list[Resource], refused: list[str]) -> None:
    prod = Context(cloud=Cloud.GCP, environment="prod", region="us-central1", today=TODAY)
    found = [violation.resource for rule, violation in check(resources, prod) if rule.id == "spot-spread"]
    assert found == refused


def test_machine_types_outside_the_allow_list_are_refused() -> None:
    context = Context(cloud=Cloud.AWS, environment="dev", today=TODAY, allowed_machine_types=frozenset({"g6.xlarge"}))
    bad = Resource(type=GROUP, name="big", props=group(machines=("g6.xlarge", "p5.48xlarge")))
    ((rule, violation),) = check([bad], context)
    assert rule.id == "machine-type-allowed"
    assert "p5.48xlarge" in violation.wrong
    small = Resource(type=GROUP, name="cpu", props=group(machines=("m7i.large",)))
    assert broken_rules(small, context=context) == []


def test_a_model_needs_space_for_two_revisions() -> None:
    # g6.xlarge has one disk of 250 GB, 232.8 GiB
    for gib, fits in ((116, True), (117, False)):
        context = Context(environment="dev", today=TODAY, model_gib={"chat": Decimal(gib)})
        found = broken_rules(spot("a", "g6.xlarge"), context=context)
        assert found == ([] if fits else ["model-fits-local-disk"])


@pytest.mark.parametrize(
    ("source", "refused"),
    [("hf://meta/llama@abc", False), ("s3://b/model.safetensors", False), ("s3://b/pytorch_model.BIN", True)],
)
def test_only_safetensors_are_served(source: str, refused: bool) -> None:
    context = Context(environment="dev", today=TODAY, model_sources={"chat": source})
    assert broken_rules(context=context) == (["safetensors-only"] if refused else [])


@pytest.mark.parametrize(
    ("resource", "until", "refused"),
    [
        pytest.param("web", date(2026, 11, 21), False, id="last day"),
        pytest.param("web", date(2026, 11, 20), True, id="over"),
        pytest.param("other", date(2027, 1, 1), True, id="another resource"),
        pytest.param("*", date(2027, 1, 1), False, id="all resources"),
    ],
)
def test_exceptions_name_a_resource_and_expire(resource: str, until: date, refused: bool) -> None:
    waiver = PolicyException(rule="no-open-ingress", resource=resource, owner="ann", reason="demo day", until=until)
    context = Context(environment="dev", today=TODAY, exceptions=(waiver,))
    rule = Resource(type=INGRESS, name="web", props={"cidrIpv4": "0.0.0.0/0"})
    assert broken_rules(rule, context=context) == (["no-open-ingress"] if refused else [])


def test_an_exception_without_an_owner_is_refused() -> None:
    fleet = {"cloud": "aws", "policies": {"exceptions": [{"rule": "x", "resource": "y", "until": "2027-01-01"}]}}
    problems = from_config({"gpu-fleet:fleet": json.dumps(fleet)}, TODAY).problems
    assert problems == tuple(
        f"gpu-fleet:fleet.policies.exceptions.0.{name}: is missing" for name in ("owner", "reason")
    )


def test_every_rule_states_reason_and_remedy() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.reason.endswith(".") and rule.remedy.endswith(".") and rule.judges for rule in RULES)


def test_unknown_values_of_a_preview_are_not_guessed() -> None:
    proxy = unknown_checking_proxy({"a": [UNKNOWN_STRING_VALUE, {"b": 1.0}], "c": UNKNOWN_STRING_VALUE})
    assert plain(proxy) == {"a": [UNKNOWN, {"b": 1.0}], "c": UNKNOWN}
    asked = Properties(proxy)
    assert dict(asked) == plain(proxy)
    assert (asked.get("c"), asked.get("d"), "d" in asked) == (UNKNOWN, None, False)


BUDGET = {
    "cloud": "aws",
    "environment": "prod",
    "budget": {"usd_per_month": "5000", "usd_per_hour_at_max": "12"},
    "pools": [
        a_pool("chat", target=2, min=0, max=4, capacity={"on_demand": {"max": 2, "machine_types": ["g6.xlarge"]}})
    ],
    "prices": [
        {"sku": "aws:ec2:g6.xlarge:spot", "usd_per_hour": "0.40", "source": "t", "as_of": "2026-11-01"},
        {"sku": "aws:ec2:g5.xlarge:spot", "usd_per_hour": "0.50", "source": "t", "as_of": "2026-11-01"},
        {"sku": "aws:ec2:g6.xlarge:on-demand", "usd_per_hour": "0.80", "source": "t", "as_of": "2026-11-01"},
        {"sku": "aws:ec2:g5.xlarge:on-demand", "usd_per_hour": "1.00", "source": "t", "as_of": "2026-11-01"},
    ],
}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # highest: 2 on-demand × 1.00 + 2 spot × 0.50 = 3.00; desired: 2 × 0.40 = 0.80/h = 584 a month
        pytest.param({"usd_per_month": "584", "usd_per_hour_at_max": "3"}, [], id="just within"),
        pytest.param({"usd_per_month": "583.99", "usd_per_hour_at_max": "3"}, ["584.00 USD a month"], id="month"),
        pytest.param({"usd_per_month": "584", "usd_per_hour_at_max": "2.99"}, ["up to 3.00 USD/h"], id="hour"),
    ],
)
def test_a_plan_above_its_budget_is_refused(budget: dict[str, str], expected: list[str]) -> None:
    config = {"gpu-fleet:fleet": json.dumps(BUDGET | {"budget": budget}), "aws:region": "us-east-1"}
    plan = [
        Resource(type=GROUP, name="a", urn="a", props=group(desiredCapacity=1.0)),
        Resource(type=GROUP, name="b", urn="b", props=group(desiredCapacity=1.0)),
        Resource(type=GROUP, name="od", urn="od", props=group("on-demand", desiredCapacity=0.0)),
    ]
    found = [v.wrong for rule, v in check(plan, from_config(config, TODAY)) if rule.id == "within-budget"]
    assert len(found) == len(expected)
    assert all(text in wrong for text, wrong in zip(expected, found, strict=True))


def test_a_plan_that_cannot_be_priced_is_refused() -> None:
    config = {"gpu-fleet:fleet": json.dumps(BUDGET | {"prices": []}), "aws:region": "us-east-1"}
    found = check([Resource(type=GROUP, name="a", urn="a", props=group())], from_config(config, TODAY))
    assert any("no price for aws:ec2:g6.xlarge:spot" in v.wrong for rule, v in found if rule.id == "within-budget")
