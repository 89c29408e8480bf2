"""Compares the permissions of the Google roles with the calls in the code."""

import re

import pytest

from components.gcp import permissions
from gpufleet.toolchain.folders import ROOT

WATCHDOGS = (
    "group_lists.py",
    "groups.py",
    "inventory.py",
    "instance_history.py",
    "members.py",
    "operations.py",
    "quotas.py",
    "resizes.py",
    "rollouts.py",
)
RIGHTS = {
    # client and call -> permission that Google requires (reference of IAM permissions)
    ("instances", "get"): "compute.instances.get",
    ("instances", "aggregated_list"): "compute.instances.list",
    ("instances", "set_labels"): "compute.instances.setLabels",
    ("instances", "stop"): "compute.instances.stop",
    ("instance_group_managers", "aggregated_list"): "compute.instanceGroupManagers.list",
    ("regions", "get"): "compute.regions.get",
    ("reservations", "aggregated_list"): "compute.reservations.list",
    ("zone_operations", "list"): "compute.zoneOperations.list",
    ("zone_operations", "wait"): "compute.zoneOperations.get",
    ("region_operations", "get"): "compute.regionOperations.get",
    ("region_operations", "wait"): "compute.regionOperations.get",
    ("global_operations", "wait"): "compute.globalOperations.get",
    ("service", "get"): "compute.instanceGroupManagers.get",
    ("service", "list_managed_instances"): "compute.instanceGroupManagers.get",
    ("service", "list_errors"): "compute.instanceGroupManagers.get",
    ("service", "resize"): "compute.instanceGroupManagers.update",
    ("service", "delete_instances"): "compute.instanceGroupManagers.update",
    ("service", "recreate_instances"): "compute.instanceGroupManagers.update",
}
"""`service` means zonal and regional groups, which need the same permissions."""
CALL = re.compile(r"\b(?:one|_calls\.begin|finish|newest|pages)\(\s*\"?(\w+)\"?,\s*\"?(\w+)\"?")


def calls_made() -> set[tuple[str, str]]:
    """Client and call of all API calls in the adapters."""
    found: set[tuple[str, str]] = set()
    for name in WATCHDOGS:
        for match in CALL.finditer((ROOT / "gpufleet" / "clouds" / "gcp" / name).read_text()):
            found.add((match[1], match[2]))
    # for this call, variables in the line above contain the operation
    found.remove(("service", "operation"))
    found |= {("service", "delete_instances"), ("service", "recreate_instances")}
    return found | {(f"{scope}_operations", "wait") for scope in ("zone", "region", "global")}


@pytest.mark.parametrize("call", sorted(calls_made()), ids=".".join)
def test_the_control_host_has_the_permission_for_every_call(call: tuple[str, str]) -> None:
    assert RIGHTS[call] in {*permissions.CONTROL, *permissions.MARKS, *permissions.STOP}


def test_an_instance_makes_no_compute_engine_calls() -> None:
    """The instance's role has no Compute Engine permissions: a role cannot be limited to the instance itself."""
    text = (ROOT / "hosts" / "node" / "google.py").read_text() + (ROOT / "hosts" / "node" / "__main__.py").read_text()
    assert "signed.call" not in text
    assert "compute.googleapis" not in text


def test_the_control_host_has_no_unused_permission() -> None:
    """`deleteInstances` of a group needs the permission to update the group, but none for the instance."""
    acts = {RIGHTS[call] for call in calls_made()}
    held = {*permissions.CONTROL, *permissions.MARKS, *permissions.STOP}
    changing = {right for right in held if right.rpartition(".")[2] not in ("get", "list")}
    assert changing <= acts
