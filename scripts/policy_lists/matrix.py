"""Settings that together cover everything that the program can create: the shipped files and variants of them."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gpufleet.settings import KEY
from gpufleet.settings.file import read_config
from stacks.value_checks import ENDPOINTS

ROOT: Final = Path(__file__).parents[2]
_IMAGE: Final = "111122223333.dkr.ecr.us-east-1.amazonaws.com/node-exporter@sha256:" + "0" * 64
_OF_OTHERS: Final = "444455556666.dkr.ecr.us-east-1.amazonaws.com/vllm-openai@sha256:" + "0" * 64
"""An image in a registry of another account."""
_ORPHANS: Final = (
    {"name": "stopping", "action": "stop", "tags": {"team": "research"}, "name_like": "note*"},
    {"name": "listening", "evidence": "cloudwatch", "older_than": "7d"},
    {"name": "stopping-old", "action": "stop", "older_than": "30d"},
)


def settings() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and configuration of each stack."""
    shipped: dict[str, Mapping[str, Any]] = {}
    for path in sorted((ROOT / "stacks" / "config").glob("Pulumi.*.yaml")):
        shipped[path.stem.removeprefix("Pulumi.")] = read_config(path)
    yield from shipped.items()
    for vary in (_all_of_aws, _little_of_aws, _orphans_listed, _blocks, _endpoints):
        yield _varied(shipped["aws-prod"], vary)
    for vary in (_all_of_google, _little_of_google, _orphans_listed):
        yield _varied(shipped["gcp-prod"], vary)


def _varied(config: Mapping[str, Any], vary: Any) -> tuple[str, Mapping[str, Any]]:
    changed = copy.deepcopy(dict(config))
    vary(changed[KEY])
    return f"{changed[KEY]['cloud']}-{changed[KEY]['environment']}", changed


def _all_of_aws(fleet: dict[str, Any]) -> None:
    fleet["network"] |= {"internet": "nat"}
    fleet["bucket"]["publishers"] = ["arn:aws:iam::111122223333:role/deploy"]
    fleet["machines"]["node_exporter_image"] = _IMAGE
    fleet["orphans"] = list(_ORPHANS[:1])
    fleet["control"] |= {"bundle": "0" * 64, "secrets": {"GPUFLEET_SLACK_TOKEN": "/gpu-fleet/prod/slack-token"}}
    for pool in fleet["pools"]:
        pool |= {"model": "chat-8b", "network": "efa"}
        pool["capacity"] = {
            "reserved": [{"zone": "us-east-1a", "machine_type": "g6.8xlarge", "count": 1, "ends": "2099-01-01"}],
            "spot": {"zones": ["us-east-1a"], "machine_types": ["g6.8xlarge", "g5.8xlarge"]},
            "on_demand": {"max": 4, "machine_types": ["g6.8xlarge"], "zones": ["us-east-1a"]},
        }


def _little_of_aws(fleet: dict[str, Any]) -> None:
    zones: list[str] = fleet["zones"]
    fleet["network"] = {
        "kind": "given",
        "id": "vpc-0123456789abcdef0",
        "cidr": "10.42.0.0/16",
        "subnets": {zone: f"subnet-0123456789abcdef{i}" for i, zone in enumerate(zones)},
    }
    fleet["bucket"]["existing"] = True
    fleet["control"]["routers"] = 1


def _blocks(fleet: dict[str, Any]) -> None:
    fleet["pools"][0]["capacity"]["reserved"] = [
        {
            "zone": "us-east-1a",
            "machine_type": "p5.48xlarge",
            "count": 2,
            "existing": "cr-0123456789abcdef0",
            "block": {"starts": "2099-01-01T11:30:00Z", "ends": "2099-01-08T11:30:00Z"},
        }
    ]


def _endpoints(fleet: dict[str, Any]) -> None:
    fleet["network"]["private_services"] = list(ENDPOINTS)
    fleet["pools"][0]["engine"]["image"] = _OF_OTHERS


def _orphans_listed(fleet: dict[str, Any]) -> None:
    rules = _ORPHANS[1:] if fleet["cloud"] == "aws" else ({"name": "old", "older_than": "7d"},)
    fleet["orphans"] = [dict(rule) for rule in rules]


def _all_of_google(fleet: dict[str, Any]) -> None:
    fleet["network"] |= {"internet": "nat"}
    fleet["machines"]["node_exporter_image"] = fleet["machines"]["dcgm_image"]
    fleet["orphans"] = [{"name": "stopping", "action": "stop", "tags": {"team": "research"}}]
    fleet["control"]["secrets"] = {"GPUFLEET_SLACK_TOKEN": "gpu-fleet-prod-slack-token"}
    capacity = fleet["pools"][1]["capacity"]
    del capacity["on_demand"]
    capacity["flex_start"] = {
        "max": 2,
        "machine_type": "a2-ultragpu-2g",
        "zone": "us-central1-c",
        "run": "3d",
    }


def _little_of_google(fleet: dict[str, Any]) -> None:
    fleet["network"] = {
        "kind": "given",
        "id": "projects/example-project/global/networks/shared",
        "cidr": "10.52.0.0/16",
        "subnets": dict.fromkeys(fleet["zones"], "projects/example-project/regions/us-central1/subnetworks/a"),
    }
    fleet["bucket"]["existing"] = True
    fleet["control"]["routers"] = 1
    reserved = fleet["pools"][0]["capacity"]["reserved"][0]
    del reserved["ends"]
    reserved |= {"existing": "projects/example-project/reservations/bought", "review_by": "2099-01-01"}
