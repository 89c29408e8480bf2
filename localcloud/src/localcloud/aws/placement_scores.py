"""GetSpotPlacementScores, which moto lacks: computed from the capacity of the emulated AWS."""

from typing import Any, Final

from moto.core.responses import ActionResult
from moto.ec2.responses._base_response import EC2BaseResponse

from localcloud.addresses import REGION, ZONES
from localcloud.aws.capacity import Use
from localcloud.aws.instances import EmulatedInstance, shown_instances
from localcloud.capacity_kind import Kind

_ZONE_IDS: Final = {zone: f"use1-az{number}" for number, zone in enumerate(ZONES, start=1)}
_LOW: Final = 3
"""The highest score of a request with fewer than three machine types, as AWS documents."""


class PlacementScoreCalls(EC2BaseResponse):
    """The EC2 operation on placement scores."""

    def get_spot_placement_scores(self) -> ActionResult:
        params = self._get_params()
        types = list(params.get("InstanceTypes") or [])
        scores = {zone: self._score(zone, types) for zone in ZONES}
        shown: list[dict[str, Any]]
        if params.get("SingleAvailabilityZone"):
            shown = [
                {"Region": REGION, "AvailabilityZoneId": _ZONE_IDS[zone], "Score": score}
                for zone, score in sorted(scores.items(), key=lambda pair: -pair[1])
            ]
        else:
            shown = [{"Region": REGION, "Score": max(scores.values())}]
        return ActionResult({"SpotPlacementScores": shown})

    def _score(self, zone: str, types: list[str]) -> int:
        uses = [instance.use for instance in shown_instances(self.ec2_backend) if instance.occupies_capacity]
        capacity = EmulatedInstance.cloud_state.capacity
        free = sum(
            1
            for machine_type in types
            if capacity.refusal(Use(zone=zone, machine_type=machine_type, kind=Kind.SPOT), uses) is None
        )
        score = 1 + round(8 * free / len(types)) if types else 1
        return min(score, _LOW) if len(types) < _LOW else score
