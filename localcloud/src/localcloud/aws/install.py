"""Replaces classes of moto with those of the emulated AWS. Nothing else patches moto."""

import os
from ipaddress import ip_network
from typing import Any

from moto.autoscaling import models as scaling_models
from moto.autoscaling import urls as scaling_urls
from moto.autoscaling.models import autoscaling_backends
from moto.ec2 import urls as ec2_urls
from moto.ec2 import utils as ec2_utils
from moto.ec2.exceptions import EC2ClientError, InvalidInstanceIdError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models import instances as instance_models
from moto.ec2.responses import EC2Response
from moto.s3 import models as bucket_models

from localcloud.addresses import ACCOUNT, REGION, ZONES
from localcloud.aws.bucket_policy import EmulatedBucket
from localcloud.aws.capacity import Use
from localcloud.aws.capacity_blocks import BlockCalls
from localcloud.aws.groups import EmulatedAutoScaling, EmulatedGroup
from localcloud.aws.instances import EmulatedInstance, StopRefusedError, shown_instances
from localcloud.aws.launch import prepare
from localcloud.aws.placement_groups import PlacementGroupCalls
from localcloud.aws.placement_scores import PlacementScoreCalls
from localcloud.aws.refusals import Refusal
from localcloud.aws.reservations import ReservationCalls
from localcloud.aws.scaling_calls import ScalingCalls
from localcloud.aws.spot_prices import SpotPriceCalls
from localcloud.aws.state import AwsState
from localcloud.aws.volumes import VolumeCalls
from localcloud.capacity_kind import Kind


class Ec2Calls(
    ReservationCalls,
    BlockCalls,
    SpotPriceCalls,
    PlacementGroupCalls,
    PlacementScoreCalls,
    VolumeCalls,
    EC2Response,
):
    """EC2's operations."""

    def run_instances(self) -> Any:
        cloud_state = EmulatedInstance.cloud_state
        refusal = self._refusal(cloud_state)
        if refusal is not None:
            raise EC2ClientError(str(refusal.without_mix.code), refusal.without_mix.message)
        answer: Any = super().run_instances()
        for instance in answer.result.instances:
            prepare(instance)
            cloud_state.billing_log.open(instance.billed_run(cloud_state.now()))
        return answer

    def create_tags(self) -> Any:
        # moto writes tags of instances that do not exist
        named = [key for key in self._get_param("Resources", []) if key.startswith("i-")]
        missing = [key for key in named if self.ec2_backend.get_instance_by_id(key) is None]
        if missing:
            raise InvalidInstanceIdError(missing)
        return super().create_tags()

    def _refusal(self, cloud_state: AwsState) -> Refusal | None:
        """The error of a RunInstances call, or None; groups do not use this call."""
        subnet = self._get_param("SubnetId")
        zone = self._get_param("Placement.AvailabilityZone")
        if subnet:
            chosen = self.ec2_backend.get_subnet(subnet)
            zone = chosen.availability_zone
            if not ip_network(chosen.cidr_block).is_loopback:
                message = f"subnet {subnet}: expected a range inside 127.0.0.0/8 (loopback), got {chosen.cidr_block}"
                raise EC2ClientError("InvalidSubnet.Range", message)
        wanted = Use(
            zone=zone or ZONES[0],
            machine_type=self._get_param("InstanceType", "m1.small"),
            kind=Kind.SPOT if self._get_param("InstanceMarketOptions.MarketType") == "spot" else Kind.ON_DEMAND,
        )
        return cloud_state.capacity.refusal(
            wanted, [other.use for other in shown_instances(self.ec2_backend) if other.occupies_capacity]
        )


def install(cloud_state: AwsState) -> tuple[EC2Backend, EmulatedAutoScaling]:
    """Make moto's EC2 and Auto Scaling the embedded cloud's. Before the first request; once per process.

    Returns the two backends of the one account and region.
    """
    os.environ["MOTO_ACCOUNT_ID"] = ACCOUNT
    EmulatedInstance.cloud_state = EmulatedGroup.cloud_state = EmulatedAutoScaling.cloud_state = cloud_state
    instance_models.Instance = EmulatedInstance
    instance_models.OperationDisableApiStopNotPermitted = StopRefusedError  # pyright: ignore[reportPrivateImportUsage]
    scaling_models.FakeAutoScalingGroup = EmulatedGroup
    bucket_models.FakeBucket = EmulatedBucket
    autoscaling_backends.backend = EmulatedAutoScaling
    ec2_urls.url_paths["{0}/"] = Ec2Calls.dispatch
    scaling_urls.url_paths["{0}/$"] = ScalingCalls.dispatch
    ec2_utils.filter_dict_attribute_mapping.update(
        {
            "instance-lifecycle": "lifecycle",
            "capacity-reservation-id": "capacity_reservation_id",
            "instance-state-code": "state_code",
        }
    )
    scaling = autoscaling_backends[ACCOUNT][REGION]
    if not isinstance(scaling, EmulatedAutoScaling):
        raise TypeError("moto's Auto Scaling was used before install()")
    return ec2_backends[ACCOUNT][REGION], scaling
