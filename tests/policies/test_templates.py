"""Tests of the templates of groups: each must be in the plan, in the version that rules check."""

import json
from typing import Any

import pytest

from gpufleet.prices.plan.preview import parse
from policies import templates
from policies.preview import resources_of
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies.resources import DEV, GCP_REGIONAL, GCP_TEMPLATE, GCP_ZONAL, GROUP, TEMPLATE

(RULE,) = templates.RULES
FLEET, INSTANCE = "aws:ec2/fleet:Fleet", "aws:ec2/instance:Instance"
ARN = "arn:aws:ec2:us-east-1:111122223333:launch-template/lt-1"
LINK = "https://www.googleapis.com/compute/v1/projects/p/global/instanceTemplates/chat"


def refused(
    kind: str, props: dict[str, Any], depends: dict[str, tuple[str, ...]] | None = None, **template: Any
) -> list[str]:
    """Return the refused properties, in a plan with one template, `urn:template`."""
    of_google = kind.startswith("gcp:")
    made = {"name": "chat", "updateDefaultVersion": True, "arn": UNKNOWN, "selfLink": UNKNOWN, **template}
    plan = [
        Resource(type=GCP_TEMPLATE if of_google else TEMPLATE, name="chat", urn="urn:template", props=made),
        Resource(type="aws:ec2/vpc:Vpc", name="other", urn="urn:other"),
        Resource(type=kind, name="it", urn="urn:it", props=props, depends=depends or {}),
    ]
    return [violation.path for violation in RULE.check(plan, DEV)]


def mixed(specification: Any, *overrides: Any) -> dict[str, Any]:
    given = {"launchTemplateSpecification": specification, "overrides": list(overrides)}
    return {"mixedInstancesPolicy": {"launchTemplate": given}}


UNKNOWN_ID = {"launchTemplateId": UNKNOWN, "version": UNKNOWN}
MAIN = "mixedInstancesPolicy.launchTemplate.launchTemplateSpecification"
OVERRIDE = "mixedInstancesPolicy.launchTemplate.overrides[0].launchTemplateSpecification"
OF_PLAN, OF_OTHER = {"mixedInstancesPolicy": ("urn:template",)}, {"mixedInstancesPolicy": ("urn:other",)}
FOREIGN = {"launchTemplateId": "lt-9"}


@pytest.mark.parametrize(
    ("kind", "props", "depends", "paths"),
    [
        pytest.param(GROUP, mixed(UNKNOWN_ID), OF_PLAN, [], id="of the plan"),
        pytest.param(GROUP, mixed(UNKNOWN_ID), OF_OTHER, [MAIN], id="of something else"),
        pytest.param(GROUP, mixed(UNKNOWN_ID), {}, [MAIN], id="of nothing that is known"),
        pytest.param(GROUP, mixed(UNKNOWN), {}, [MAIN], id="unknown specification"),
        pytest.param(GROUP, {"mixedInstancesPolicy": UNKNOWN}, OF_PLAN, ["mixedInstancesPolicy"],
                     id="unknown policy"),
        pytest.param(GROUP, mixed({**FOREIGN, "version": UNKNOWN}), OF_PLAN, [MAIN],
                     id="of another, in the version of one of the plan"),
        pytest.param(GROUP, mixed(FOREIGN), {}, [MAIN], id="of another account or program"),
        pytest.param(GROUP, mixed({"launchTemplateName": "chat"}), {}, [], id="by its name"),
        pytest.param(GROUP, mixed(UNKNOWN_ID, {"launchTemplateSpecification": FOREIGN}), OF_PLAN, [OVERRIDE],
                     id="override with a template of its own"),
        pytest.param(GROUP, mixed(UNKNOWN_ID, {"launchTemplateSpecification": UNKNOWN_ID}), OF_PLAN, [OVERRIDE],
                     id="override with an unknown template"),
        pytest.param(GROUP, mixed(UNKNOWN_ID, {"instanceType": "g6.xlarge"}), OF_PLAN, [], id="plain override"),
        pytest.param(GROUP, {"launchTemplate": {"id": UNKNOWN}}, {"launchTemplate": ("urn:template",)}, [],
                     id="one template"),
        pytest.param(GROUP, {"launchTemplate": {"id": "lt-9", "version": "$Latest"}}, {}, ["launchTemplate"],
                     id="one template of another"),
        pytest.param(GROUP, {"launchConfiguration": "old"}, {}, ["launchConfiguration"], id="launch configuration"),
        pytest.param(GROUP, {"launchTemplate": UNKNOWN, "launchConfiguration": UNKNOWN,
                             "mixedInstancesPolicy": UNKNOWN}, {}, [], id="what a provider leaves unknown"),
        pytest.param(FLEET, {"launchTemplateConfigs": [{"launchTemplateSpecification": FOREIGN}]}, {},
                     ["launchTemplateConfigs[0].launchTemplateSpecification"], id="fleet"),
        pytest.param(INSTANCE, {"launchTemplate": {"id": "lt-9"}}, {}, ["launchTemplate"], id="instance"),
        pytest.param(INSTANCE, {"launchTemplate": UNKNOWN}, {}, [], id="instance without"),
        pytest.param(GCP_ZONAL, {"versions": [{"instanceTemplate": UNKNOWN}]}, {"versions": ("urn:template",)}, [],
                     id="Google group"),
        pytest.param(GCP_ZONAL, {"versions": [{"instanceTemplate": UNKNOWN}]}, {"versions": ("urn:other",)},
                     ["versions[0].instanceTemplate"], id="Google group of something else"),
        pytest.param(GCP_REGIONAL, {"versions": [{"instanceTemplate": UNKNOWN}, {"instanceTemplate": LINK + "-2"}]},
                     {"versions": ("urn:template",)}, ["versions[1].instanceTemplate"], id="second version"),
        pytest.param(GCP_ZONAL, {"versions": [{"instanceTemplate": UNKNOWN}] * 2}, {"versions": ("urn:template",)},
                     ["versions[0].instanceTemplate", "versions[1].instanceTemplate"], id="two of one template"),
        pytest.param(GCP_ZONAL, {"versions": UNKNOWN}, {"versions": ("urn:other",)}, ["versions"],
                     id="unknown versions"),
        pytest.param("gcp:compute/instanceFromTemplate:InstanceFromTemplate", {"sourceInstanceTemplate": LINK + "-2"},
                     {}, ["sourceInstanceTemplate"], id="instance of a template of another"),
        pytest.param("gcp:compute/instanceFromMachineImage:InstanceFromMachineImage", {"sourceMachineImage": "m"}, {},
                     ["sourceMachineImage"], id="instance of a machine image"),
    ],
)  # fmt: skip
def test_instances_start_from_templates_of_the_plan(
    kind: str, props: dict[str, Any], depends: dict[str, tuple[str, ...]], paths: list[str]
) -> None:
    assert refused(kind, props, depends) == paths


@pytest.mark.parametrize(
    ("identity", "passes"), [pytest.param("lt-1", True, id="its id"), pytest.param("lt-9", False, id="another id")]
)
def test_after_up_a_known_id_must_be_the_templates(identity: str, passes: bool) -> None:
    props = mixed({"launchTemplateId": identity, "version": "1"})
    assert refused(GROUP, props, OF_PLAN, arn=ARN, latestVersion=1.0) == ([] if passes else [MAIN])


def test_a_plan_with_inputs_alone_shows_the_source_of_an_id() -> None:
    props = mixed({"launchTemplateId": "lt-1", "version": "1"}, {"instanceType": "g6.xlarge"})
    assert refused(GROUP, props, OF_PLAN, arn=None, selfLink=None) == []
    assert refused(GROUP, props, OF_OTHER, arn=None, selfLink=None) == [MAIN]


@pytest.mark.parametrize(
    ("link", "passes"),
    [
        pytest.param(LINK, True, id="its link"),
        pytest.param(f"{LINK}?uniqueId=12", True, id="its link with an id"),
        pytest.param(LINK.replace("/v1/", "/beta/"), True, id="link of another version of the API"),
        pytest.param(LINK.replace("/p/", "/q/"), False, id="the same name in another project"),
    ],
)
def test_after_up_a_known_link_must_be_the_templates(link: str, passes: bool) -> None:
    props = {"versions": [{"instanceTemplate": link}]}
    found = refused(GCP_ZONAL, props, {"versions": ("urn:template",)}, selfLink=LINK)
    assert found == ([] if passes else ["versions[0].instanceTemplate"])


@pytest.mark.parametrize(
    ("version", "template", "passes"),
    [
        pytest.param("3", {"latestVersion": 3.0}, True, id="latest by number"),
        pytest.param("2", {"latestVersion": 3.0}, False, id="older one"),
        pytest.param("1", {"latestVersion": UNKNOWN}, True, id="first one, before it is made"),
        pytest.param("$Latest", {"latestVersion": 3.0}, True, id="latest"),
        pytest.param("$Default", {}, True, id="default, which follows"),
        pytest.param("$Default", {"updateDefaultVersion": False}, False, id="default, which stays"),
        pytest.param(UNKNOWN, {"latestVersion": UNKNOWN}, True, id="unknown"),
    ],
)
def test_the_template_version_is_the_checked_one(version: Any, template: dict[str, Any], passes: bool) -> None:
    props = {"launchTemplate": {"name": "chat", "version": version}}
    assert refused(GROUP, props, {}, **template) == ([] if passes else ["launchTemplate"])


def step(kind: str, name: str, inputs: dict[str, Any], outputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:dev::gpu-fleet::{kind}::{name}"
    state = {"type": kind, "urn": urn, "inputs": inputs, "outputs": outputs, **more}
    return {"op": "same", "urn": urn, "oldState": state, "newState": state}


@pytest.mark.parametrize(
    ("identity", "paths"), [pytest.param("lt-1", [], id="its id"), pytest.param("lt-9", [MAIN], id="another id")]
)
def test_a_preview_without_the_engine_matches_existing_templates(identity: str, paths: list[str]) -> None:
    template = step(TEMPLATE, "chat", {"name": "chat"}, {"name": "chat", "arn": ARN, "latestVersion": 2})
    sources = {"mixedInstancesPolicy": [template["urn"]]}
    given = mixed({"launchTemplateId": identity, "version": "2"})
    group = step(GROUP, "spot", given, given, propertyDependencies=sources)
    found = resources_of(parse(json.dumps({"steps": [template, group], "changeSummary": {"same": 2}})))
    assert [violation.path for violation in RULE.check(found, DEV)] == paths
