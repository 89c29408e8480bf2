"""Tests of the threat model in docs/threat-model.md: compares each row with the permissions that `pulumi up` grants
to machines.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from gpufleet.domain import tags
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.iam import allowed, google_permits, statements
from tests.fixtures.stacks.declared import declared
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, ROOT, changed

DIGEST: Final = "a" * 64
WEIGHTS: Final = f"models/chat/{DIGEST}/files/model.safetensors"
BACKUP: Final = "backups/ledger/fleet/20261125T000000Z.jsonl.gz"
DOCUMENTS: Final = (
    "fleet/fleet.json",
    "fleet/router.json",
    "models/chat/served.json",
    f"models/chat/{DIGEST}/manifest.json",
    f"approvals/chat/{DIGEST}.json",
    f"agents/{DIGEST}/gpufleet-node.pyz",
    f"control/bundles/{DIGEST}.tar.gz",
)
SLACK: Final = {"aws": "/gpu-fleet/prod/slack-token", "gcp": "gpu-fleet-prod-slack-token"}
FOREIGN_SECRET: Final = {"aws": "/gpu-fleet/dev/order-key", "gcp": "gpu-fleet-dev-order-key"}
KINDS: Final = ("instance", "router", "control")
"""Columns of the table, in order."""
ACCOUNTS: Final = {"instance": "gpu", "router": "rtr", "control": "ctl"}
"""Suffixes of the names of service accounts."""
ANSWERS: Final = {"yes": {"aws", "gcp"}, "no": set[str](), "Google Cloud": {"gcp"}, "AWS": {"aws"}}
"""Maps the text of a cell to the clouds on which the call is allowed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a machine may try: a permission and a resource name, in the syntax of each cloud."""

    aws: tuple[str, str] | None
    gcp: tuple[str, str] | None
    environment: str = "prod"
    """Environment of the resource."""
    keys: tuple[str, ...] = ()
    """Tags that the call writes."""


def on_object(action: str, permission: str, key: str) -> Call:
    bucket = {cloud: config[FLEET]["bucket"]["name"] for cloud, config in (("aws", AWS), ("gcp", GCP))}
    return Call(
        (f"s3:{action}", f"arn:aws:s3:::{bucket['aws']}/{key}"),
        (f"storage.objects.{permission}", f"projects/_/buckets/{bucket['gcp']}/objects/{key}"),
    )


def on_secret(names: Mapping[str, str]) -> Call:
    account = AWS[FLEET]["account"]
    return Call(
        ("ssm:GetParameter", f"arn:aws:ssm:us-east-1:{account}:parameter/{names['aws'].lstrip('/')}"),
        ("secretmanager.versions.access", names["gcp"]),
    )


def on_group(action: str, permission: str | None, environment: str) -> Call:
    account, name = AWS[FLEET]["account"], f"gpu-fleet-{environment}-chat-spot-a-5bf5e0b"
    group = f"arn:aws:autoscaling:us-east-1:{account}:autoScalingGroup:u:autoScalingGroupName/{name}"
    there = f"projects/p/zones/us-central1-a/instanceGroupManagers/{name}"
    return Call((f"autoscaling:{action}", group), (permission, there) if permission else None, environment)


def on_instance(action: str | None, permission: str | None, environment: str, *keys: str) -> Call:
    account = AWS[FLEET]["account"]
    there = f"projects/p/zones/us-central1-a/instances/{environment}-chat-spot-a-x1y2"
    return Call(
        (f"ec2:{action}", f"arn:aws:ec2:us-east-1:{account}:instance/i-1") if action else None,
        (permission, there) if permission else None,
        environment,
        keys,
    )


def of_orders(config: Mapping[str, Any]) -> str:
    return config[FLEET]["orders"]["private_key"]


CALLS: Final[Mapping[str, Sequence[Call]]] = {
    "read the weights of models": [on_object("GetObject", "get", WEIGHTS)],
    "read the fleet document": [on_object("GetObject", "get", "fleet/fleet.json")],
    "write what machines obey (documents, models, approvals, agents, the control host's software)": [
        on_object(*how, key)
        for key in DOCUMENTS
        for how in (("PutObject", "create"), ("PutObject", "update"), ("DeleteObject", "delete"))
    ],
    "add copies of the ledger": [on_object("PutObject", "create", BACKUP)],
    "remove copies of the ledger": [
        on_object("DeleteObject", "delete", BACKUP),
        on_object("DeleteObjectVersion", "update", BACKUP),
    ],
    "read the engines' key": [on_secret({"aws": AWS[FLEET]["engine_key"], "gcp": GCP[FLEET]["engine_key"]})],
    "read the key that signs orders": [on_secret({"aws": of_orders(AWS), "gcp": of_orders(GCP)})],
    "read Slack's token": [on_secret(SLACK)],
    "read secrets of another environment": [on_secret(FOREIGN_SECRET)],
    "list the region's instances": [
        Call(("ec2:DescribeInstances", "*"), ("compute.instances.list", "projects/p")),
    ],
    "resize groups, and end instances through them": [
        on_group("SetDesiredCapacity", "compute.instanceGroupManagers.update", "prod"),
        on_group("TerminateInstanceInAutoScalingGroup", "compute.instanceGroupManagers.update", "prod"),
    ],
    "the same in another environment": [
        on_group("SetDesiredCapacity", "compute.instanceGroupManagers.update", "dev"),
        on_group("TerminateInstanceInAutoScalingGroup", "compute.instanceGroupManagers.update", "dev"),
    ],
    "complete lifecycle hooks": [on_group("CompleteLifecycleAction", None, "prod")],
    "mark instances as idle or kept": [
        on_instance("CreateTags", "compute.instances.setLabels", "prod", tags.IDLE_SINCE),
        on_instance("DeleteTags", "compute.instances.setLabels", "prod", tags.KEEP_UNTIL),
    ],
    "mark instances of another environment": [
        on_instance("CreateTags", "compute.instances.setLabels", "dev", tags.IDLE_SINCE),
    ],
    "move instances to another pool or environment": [
        on_instance("CreateTags", "compute.instances.setLabels", "prod", tags.ENVIRONMENT, tags.POOL),
    ],
    "end or stop machines outside groups": [
        on_instance("TerminateInstances", "compute.instances.delete", "prod"),
        on_instance("StopInstances", "compute.instances.stop", "prod"),
    ],
    "start machines outside groups, or change what groups start": [
        on_instance("RunInstances", "compute.instances.create", "prod"),
        on_instance("CreateLaunchTemplateVersion", "compute.instanceTemplates.create", "prod"),
        on_instance(None, "compute.instances.setMetadata", "prod"),
    ],
    "give itself or others permissions": [
        Call(("iam:PutRolePolicy", "*"), ("resourcemanager.projects.setIamPolicy", "projects/p")),
        Call(("iam:PassRole", "*"), ("iam.serviceAccounts.actAs", "projects/p")),
    ],
}
"""Calls to try, by the first column of the table. "yes": all calls are allowed. "no": none is."""


def table() -> dict[str, tuple[str, ...]]:
    """Return the cells of each row of the page's table."""
    text = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    section = text.partition("## What a compromised machine can do\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: tuple(row[1:4]) for row in rows[2:]}


class Rights:
    """Permissions of the machines of production, by cloud and kind of machine."""

    def __init__(self, folder: Path) -> None:
        self._aws = self._declared(AWS, "aws", folder)
        self._gcp = self._declared(GCP, "gcp", folder)

    @staticmethod
    def _declared(config: dict[str, Any], cloud: str, folder: Path) -> RecordingMocks:
        control = {"control.routers": 2, "control.bundle": DIGEST}
        control |= {"control.secrets": {"GPUFLEET_SLACK_TOKEN": SLACK[cloud]}}
        return declared(changed(config, control), f"{cloud}-prod", folder)

    def clouds(self, kind: str, call: Call) -> set[str]:
        """Return the clouds on which a machine of that kind may make the call."""
        return {cloud for cloud, may in (("aws", self._on_aws), ("gcp", self._on_google)) if may(kind, call)}

    def _on_aws(self, kind: str, call: Call) -> bool:
        if call.aws is None:
            return False
        name = f"gpu-fleet-prod-{kind}"
        role = str(self._aws.named("aws:iam/rolePolicy:RolePolicy", name)["policy"])
        bucket = [one.inputs["policy"] for one in self._aws.of_type("aws:s3/bucketPolicy:BucketPolicy")]
        tag = f"ResourceTag/{tags.ENVIRONMENT}"
        context = {
            "aws:PrincipalArn": f"arn:aws:iam::{AWS[FLEET]['account']}:role/{name}-3f2a",
            "aws:SecureTransport": "true",
            f"ec2:{tag}": call.environment,
            f"autoscaling:{tag}": call.environment,
            "ec2:InstanceType": "g6.xlarge",
            **({"aws:TagKeys": list(call.keys)} if call.keys else {}),
        }
        return allowed(statements(role, *bucket), *call.aws, context)

    def _on_google(self, kind: str, call: Call) -> bool:
        account = f"gpu-fleet-prod-{ACCOUNTS[kind]}"
        return call.gcp is not None and google_permits(self._gcp, account, *call.gcp)


@pytest.fixture(scope="module")
def rights(tmp_path_factory: pytest.TempPathFactory) -> Rights:
    return Rights(tmp_path_factory.mktemp("threat-model"))


def test_every_row_has_its_calls() -> None:
    assert list(table()) == list(CALLS)


@pytest.mark.parametrize("asset", CALLS)
def test_a_compromised_machine_has_exactly_the_permissions_of_the_threat_model(rights: Rights, asset: str) -> None:
    for kind, cell in zip(KINDS, table()[asset], strict=True):
        wanted = ANSWERS[cell]
        for call in CALLS[asset]:
            known = {cloud for cloud, one in (("aws", call.aws), ("gcp", call.gcp)) if one is not None}
            assert rights.clouds(kind, call) == wanted & known, f"{kind}: {json.dumps([call.aws, call.gcp])}"
