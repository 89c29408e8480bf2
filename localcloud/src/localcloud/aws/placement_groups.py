"""Placement groups and the checks of launches with EFA, which moto lacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.utils import convert_tag_spec
from moto.moto_api._internal import mock_random

from gpufleet.domain.catalogue import UnknownMachineError, machine
from gpufleet.domain.model import Cloud
from localcloud.aws.instances import shown_instances
from localcloud.aws.refusals import Refusal, Shortage
from localcloud.documents import items

_EFA = frozenset({"efa", "efa-only"})


class PlacementGroup(TaggedEC2Resource):
    """A placement group."""

    def __init__(self, backend: EC2Backend, wanted: Mapping[str, Any]) -> None:
        self.ec2_backend = backend
        self.id = f"pg-{mock_random.get_random_hex(17)}"
        self.wanted = wanted
        self.name = str(wanted["GroupName"])

    def as_result(self) -> dict[str, Any]:
        account, region = self.ec2_backend.account_id, self.ec2_backend.region_name
        return {
            "GroupName": self.name,
            "GroupId": self.id,
            "GroupArn": f"arn:aws:ec2:{region}:{account}:placement-group/{self.name}",
            "Strategy": self.wanted["Strategy"],
            "State": "available",
            "PartitionCount": self.wanted.get("PartitionCount"),
            "SpreadLevel": self.wanted.get("SpreadLevel"),
            "Tags": self.get_tags(),
        }


@dataclass(slots=True)
class PlacementGroups:
    """All placement groups of one region."""

    by_name: dict[str, PlacementGroup] = field(default_factory=dict[str, PlacementGroup])

    def get(self, name: str) -> PlacementGroup:
        """Raises EC2ClientError for an unknown name."""
        found = self.by_name.get(name)
        if found is None:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", _unknown(name))
        return found


def of(ec2: EC2Backend) -> PlacementGroups:
    """The placement groups of an EC2 backend."""
    found: PlacementGroups = vars(ec2).setdefault("embedded_placement_groups", PlacementGroups())
    return found


def refusal(ec2: EC2Backend, data: Mapping[str, Any], group: str | None, machine_type: str) -> Refusal | None:
    """The error of a launch of this type from this template in this placement group, or None; capacity is ignored."""
    asked = sum(1 for interface in items(data, "NetworkInterfaces") if interface.get("InterfaceType") in _EFA)
    try:
        has = machine(Cloud.AWS, machine_type).efa_interfaces
    except UnknownMachineError:
        has = 0
    if asked and has == 0:
        return Refusal(code=Shortage.NO_EFA, message=f"EFA interfaces are not supported on {machine_type}")
    if has is not None and asked > has:
        message = f"Interface count {asked} exceeds the limit for {machine_type}"
        return Refusal(code=Shortage.INTERFACES, message=message)
    if group and group not in of(ec2).by_name:
        return Refusal(code=Shortage.NO_PLACEMENT, message=_unknown(group))
    return None


class PlacementGroupCalls(EC2BaseResponse):
    """The EC2 operations on placement groups."""

    def create_placement_group(self) -> ActionResult:
        params = self._get_params()
        known = of(self.ec2_backend).by_name
        name = str(params.get("GroupName") or "")
        if name in known:
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
        self.error_on_dryrun()
        made: Any = PlacementGroup(self.ec2_backend, params)
        known[name] = made
        made.add_tags(convert_tag_spec(params.get("TagSpecifications") or []).get("placement-group", {}))
        return ActionResult({"PlacementGroup": made.as_result()})

    def describe_placement_groups(self) -> ActionResult:
        known = of(self.ec2_backend)
        wanted = items(self._get_params(), "GroupNames")
        found = [known.get(name) for name in wanted] if wanted else list(known.by_name.values())
        return ActionResult({"PlacementGroups": [one.as_result() for one in found]})

    def delete_placement_group(self) -> ActionResult:
        known = of(self.ec2_backend)
        found = known.get(str(self._get_params().get("GroupName") or ""))
        there = [one for one in shown_instances(self.ec2_backend) if one.occupies_capacity]
        if any(one.placement.group_name == found.name for one in there):
            raise EC2ClientError(
                "InvalidPlacementGroup.InUse", f"The placement group '{found.name}' is in use and may not be deleted."
            )
        del known.by_name[found.name]
        return ActionResult({"Return": True})


def _unknown(name: str) -> str:
    return f"The Placement Group '{name}' is unknown."
