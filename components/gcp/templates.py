"""The instance template of GPU instances: safe by default, nothing to switch off."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pulumi
from pulumi_gcp import compute

from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.tags import PREEMPTION_NOTICE

LOCAL_SSD_GIB: Final = 375
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
"""Scopes do not narrow: the service account's rights do."""
MODELS: Final = {
    CapacityType.RESERVED: "STANDARD",
    CapacityType.SPOT: "SPOT",
    CapacityType.ON_DEMAND: "STANDARD",
    CapacityType.FLEX_START: "FLEX_START",
}
BOUND: Final = "RESERVATION_BOUND"
NOTICE_S: Final = 120
"""From the notice of a preemption in the metadata to the order to shut down: the longest that Google offers."""
ENDS_BY_ITSELF: Final = frozenset({"SPOT", "FLEX_START", BOUND})
"""Provisioning models whose instances Google ends, so that it must be said what becomes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The boot disk (Hyperdisk Balanced or the type named). Models lie on local SSD, not here."""

    gib: int = 100
    kind: str = "pd-ssd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What all instances of a pool start from."""

    image: pulumi.Input[str]
    """Path of an image, `projects/…/global/images/…`."""
    service_account: pulumi.Input[str]
    """Email."""
    subnet: pulumi.Input[str]
    region: str
    disk: Disk = Disk()


def instance_template(  # noqa: PLR0913
    name: str,
    template: Template,
    *,
    machine_type: str,
    capacity_type: CapacityType,
    user_data: str,
    labels: Mapping[str, str],
    opts: pulumi.ResourceOptions,
    reservation: pulumi.Input[str] | None = None,
    block: bool = False,
    run: timedelta | None = None,
) -> compute.InstanceTemplate:
    """Declare one. With the name of a `reservation` its instances start in that prepaid capacity alone.

    `run`: how long each instance may run; flex-start needs it.
    """
    return compute.InstanceTemplate(
        name,
        machine_type=machine_type,
        region=template.region,
        labels=dict(labels),
        metadata={"enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE", **_notice(capacity_type)},
        metadata_startup_script=user_data,
        disks=[_boot_disk(template), *_local_disks(machine_type)],
        # no access_configs: no public address
        network_interfaces=[compute.InstanceTemplateNetworkInterfaceArgs(subnetwork=template.subnet)],
        service_account=compute.InstanceTemplateServiceAccountArgs(email=template.service_account, scopes=[SCOPE]),
        shielded_instance_config=compute.InstanceTemplateShieldedInstanceConfigArgs(
            enable_secure_boot=True, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        scheduling=_scheduling(capacity_type, block=block, run=run),
        reservation_affinity=_affinity(reservation),
        opts=opts,
    )


def local_ssd_count(machine_type: str) -> int:
    """Local SSDs to ask for: none where the machine type brings them along or the catalogue does not know it."""
    try:
        machine = catalogue.machine(Cloud.GCP, machine_type)
    except catalogue.UnknownMachineError:
        return 0
    return machine.nvme_disks if machine.nvme_optional else 0


def _boot_disk(template: Template) -> compute.InstanceTemplateDiskArgs:
    return compute.InstanceTemplateDiskArgs(
        boot=True,
        auto_delete=True,
        source_image=template.image,
        disk_type=template.disk.kind,
        disk_size_gb=template.disk.gib,
    )


def _local_disks(machine_type: str) -> list[compute.InstanceTemplateDiskArgs]:
    return [
        compute.InstanceTemplateDiskArgs(
            type="SCRATCH", disk_type="local-ssd", interface="NVME", disk_size_gb=LOCAL_SSD_GIB, auto_delete=True
        )
        for _ in range(local_ssd_count(machine_type))
    ]


def _notice(capacity_type: CapacityType) -> dict[str, str]:
    """What the node agent reads: the metadata server tells that an instance is preempted, and not when it goes."""
    return {PREEMPTION_NOTICE: str(NOTICE_S)} if capacity_type is CapacityType.SPOT else {}


def _scheduling(
    capacity_type: CapacityType, *, block: bool, run: timedelta | None
) -> compute.InstanceTemplateSchedulingArgs:
    model = BOUND if block else MODELS[capacity_type]
    ends_by_itself = model in ENDS_BY_ITSELF
    return compute.InstanceTemplateSchedulingArgs(
        provisioning_model=model,
        preemptible=model == "SPOT",
        automatic_restart=not ends_by_itself,
        preemption_notice_duration=(
            compute.InstanceTemplateSchedulingPreemptionNoticeDurationArgs(seconds=NOTICE_S)
            if model == "SPOT"
            else None
        ),
        # machines with GPUs cannot move to another host
        on_host_maintenance="TERMINATE",
        # a stopped instance would have lost its cache and go on costing a disk; refused for STANDARD
        instance_termination_action="DELETE" if ends_by_itself else None,
        max_run_duration=(
            compute.InstanceTemplateSchedulingMaxRunDurationArgs(seconds=int(run.total_seconds())) if run else None
        ),
    )


def _affinity(reservation: pulumi.Input[str] | None) -> compute.InstanceTemplateReservationAffinityArgs:
    if reservation is None:
        # what one pool paid for is not used up by another
        return compute.InstanceTemplateReservationAffinityArgs(type="NO_RESERVATION")
    return compute.InstanceTemplateReservationAffinityArgs(
        type="SPECIFIC_RESERVATION",
        specific_reservation=compute.InstanceTemplateReservationAffinitySpecificReservationArgs(
            key="compute.googleapis.com/reservation-name", values=[reservation]
        ),
    )
