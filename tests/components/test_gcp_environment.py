"""Tests of an environment's resources outside pools on Google Cloud: network, bucket, firewall, accounts, control
host.
"""

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from components.gcp import permissions
from components.gcp.bucket import ModelBucket
from components.gcp.control_host import ControlHost, ControlHostArgs, MachineArgs
from components.gcp.firewall import INSTANCE_PORTS, Firewall, FirewallArgs
from components.gcp.identities import MachineIdentity, MachineIdentityArgs
from components.gcp.network import Network, NetworkArgs
from tests.fixtures.fakes import RecordingMocks

GPU, CONTROL = "gpu@p.iam.gserviceaccount.com", "ctl@p.iam.gserviceaccount.com"
ROUTER = "rtr@p.iam.gserviceaccount.com"
IAP = "35.235.240.0/20"
PROBES = {"35.191.0.0/16", "130.211.0.0/22"}


def declare(make: Callable[[], object]) -> None:
    @pulumi.runtime.test
    def program() -> None:
        make()

    program()


@pytest.mark.parametrize("nat_gateway", [False, True])
def test_the_network_reaches_google_and_outside_only_when_asked(mocks: RecordingMocks, nat_gateway: bool) -> None:
    declare(lambda: Network("net", NetworkArgs(region="us-central1", cidr="10.0.0.0/16", nat_gateway=nat_gateway)))
    (network,) = mocks.of_type("gcp:compute/network:Network")
    (subnet,) = mocks.of_type("gcp:compute/subnetwork:Subnetwork")
    assert network.inputs["autoCreateSubnetworks"] is False
    assert subnet.inputs["privateIpGoogleAccess"] is True
    assert len(mocks.of_type("gcp:compute/routerNat:RouterNat")) == nat_gateway


def test_the_bucket_is_uniform_versioned_and_private(mocks: RecordingMocks) -> None:
    declare(lambda: ModelBucket("models", "p-models", "us-central1", {"team": "one"}))
    bucket = mocks.named("gcp:storage/bucket:Bucket", "models")
    assert bucket["uniformBucketLevelAccess"] is True
    assert bucket["publicAccessPrevention"] == "enforced"
    assert bucket["versioning"] == {"enabled": True}


def rules(mocks: RecordingMocks, clients: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    args = FirewallArgs(
        network_id="net",
        instance_account=GPU,
        control_account=CONTROL,
        router_account=ROUTER,
        client_networks=clients,
    )
    declare(lambda: Firewall("fw", args))
    return [rule.inputs for rule in mocks.of_type("gcp:compute/firewall:Firewall")]


def test_no_firewall_allows_all_sources(mocks: RecordingMocks) -> None:
    found = rules(mocks, ("10.1.0.0/16",))
    ranges = {one for rule in found for one in rule.get("sourceRanges") or ()}
    assert ranges == {IAP, "10.1.0.0/16", *PROBES}
    assert all(rule["targetServiceAccounts"] in ([GPU], [ROUTER], [CONTROL, ROUTER]) for rule in found)
    with pytest.raises(ValueError, match=r"client_networks: 0\.0\.0\.0/0 contains all addresses"):
        FirewallArgs(network_id="net", instance_account=GPU, control_account=CONTROL, client_networks=("0.0.0.0/0",))


def test_operators_reach_control_host_and_routers_only_through_iap(mocks: RecordingMocks) -> None:
    (ssh,) = [rule for rule in rules(mocks) if rule["allows"][0]["ports"] == ["22"]]
    assert (ssh["sourceRanges"], ssh["targetServiceAccounts"]) == ([IAP], [CONTROL, ROUTER])


def test_instances_are_reached_by_control_host_routers_and_health_checks(mocks: RecordingMocks) -> None:
    to_instances = [rule for rule in rules(mocks) if rule["targetServiceAccounts"] == [GPU]]
    watched, asked, probed = sorted(
        to_instances, key=lambda rule: ("sourceRanges" in rule, rule.get("sourceServiceAccounts"))
    )
    assert watched["sourceServiceAccounts"] == [CONTROL]
    assert (asked["sourceServiceAccounts"], asked["allows"][0]["ports"]) == ([ROUTER], ["8000", "9501"])
    assert watched["allows"][0]["ports"] == [str(port) for port in INSTANCE_PORTS]
    assert (set(probed["sourceRanges"]), probed["allows"][0]["ports"]) == (PROBES, ["9500"])


def test_only_the_control_host_reaches_node_exporters(mocks: RecordingMocks) -> None:
    args = FirewallArgs(network_id="net", instance_account=GPU, control_account=CONTROL, node_exporter=True)
    declare(lambda: Firewall("fw", args))
    (opened,) = [
        rule.inputs
        for rule in mocks.of_type("gcp:compute/firewall:Firewall")
        if "9100" in rule.inputs["allows"][0]["ports"]
    ]
    assert (opened["sourceServiceAccounts"], opened["targetServiceAccounts"]) == ([CONTROL], [GPU])
    assert opened.get("sourceRanges") is None


@pytest.mark.parametrize(
    ("on_bucket", "single"),
    [
        pytest.param(permissions.INSTANCE_ON_BUCKET, (), id="instance"),
        pytest.param(permissions.ROUTER_ON_BUCKET, permissions.ROUTER, id="router"),
        pytest.param(permissions.CONTROL_ON_BUCKET, permissions.CONTROL, id="control host"),
    ],
)
def test_a_machine_has_its_own_account_with_exactly_these_permissions(
    mocks: RecordingMocks, on_bucket: tuple[permissions.OnBucket, ...], single: tuple[str, ...]
) -> None:
    args = MachineIdentityArgs(
        account_id="gpu-fleet-dev-gpu",
        what="GPU instances",
        project="p",
        bucket="b",
        bucket_name="b",
        on_bucket=on_bucket,
        secrets=("token",),
        permissions=single,
    )
    declare(lambda: MachineIdentity("gpu", args))
    assert len(mocks.of_type("gcp:serviceaccount/account:Account")) == 1
    roles = mocks.of_type("gcp:projects/iAMCustomRole:IAMCustomRole")
    assert [role.inputs["permissions"] for role in roles] == ([sorted(single)] if single else [])
    assert not [one for one in single if "*" in one]
    (secret,) = mocks.of_type("gcp:secretmanager/secretIamMember:SecretIamMember")
    assert (secret.inputs["secretId"], secret.inputs["role"]) == ("token", "roles/secretmanager.secretAccessor")
    members = mocks.of_type("gcp:storage/bucketIAMMember:BucketIAMMember")
    assert [bool(member.inputs.get("condition")) for member in members] == [bool(one.prefixes) for one in on_bucket]
    in_project = mocks.of_type("gcp:projects/iAMMember:IAMMember")
    assert len(in_project) == len(roles), "without rights of its own in the project it has none there"
    assert all(member.inputs["role"] != "roles/owner" for member in in_project)


def test_the_control_host_has_no_public_address_and_a_separate_data_disk(mocks: RecordingMocks) -> None:
    machine = MachineArgs(image="debian", machine_type="e2-medium", service_account=CONTROL, subnet="net")
    args = ControlHostArgs(
        machine=machine,
        zone="us-central1-a",
        network_id="net",
        domain="dev.gpu-fleet.internal",
        data_gib=50,
        boot_data=lambda device: f"# {device}",
    )
    declare(lambda: ControlHost("control", args))
    (host,) = mocks.of_type("gcp:compute/instance:Instance")
    (interface,) = host.inputs["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert host.inputs["metadata"] == {"enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE"}
    assert all(host.inputs["shieldedInstanceConfig"].values())
    assert host.inputs["metadataStartupScript"] == "# /dev/disk/by-id/google-data"
    (disk,) = mocks.of_type("gcp:compute/disk:Disk")
    (attached,) = host.inputs["attachedDisks"]
    assert attached["source"] == f"{disk.name}-id"
    assert mocks.named("gcp:dns/managedZone:ManagedZone", "control")["visibility"] == "private"
    assert mocks.named("gcp:dns/recordSet:RecordSet", "control-control")["name"] == "control.dev.gpu-fleet.internal."
