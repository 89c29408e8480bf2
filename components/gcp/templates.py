"""The instance template of GPU instances. Its security settings are fixed and cannot be disabled."""

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
"""OAuth scope of all machines. Scopes restrict nothing here; the service account's permissions do."""
MODELS: Final = {
    CapacityType.RESERVED: "STANDARD",
    CapacityType.SPOT: "SPOT",
    CapacityType.ON_DEMAND: "STANDARD",
    CapacityType.FLEX_START: "FLEX_START",
}
BOUND: Final = "RESERVATION_BOUND"
NOTICE_S: Final = 120
"""Seconds between the preemption notice in the metadata and the shutdown. 120 is the longest time that Google offers.
"""
ENDS_BY_ITSELF: Final = frozenset({"SPOT", "FLEX_START", BOUND})
"""Provisioning models whose instances Google terminates. Their template must set a termination action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The boot disk, by default a Persistent Disk SSD. Models are stored on local SSD, not on this disk."""

    gib: int = 100
    kind: str = "pd-ssd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The settings that all instances of a pool share."""

    image: pulumi.Input[str]
    """Path of an image: `projects/…/global/images/…`."""
    service_account: pulumi.Input[str]
    """Email address of the service account."""
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
    """Declare an instance template. With the name of a `reservation`, instances start only in that prepaid capacity.

    `run` is the maximum run time of each instance. Flex-start requires it.
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
    """Return the number of local SSDs to request. It is 0 if the machine type includes them or is not in the
    catalogue.
    """
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
    """Return the metadata for the node agent. Google's metadata server reports a preemption, but not the time of the
    shutdown.
    """
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
        # machines with GPUs do not support live migration
        on_host_maintenance="TERMINATE",
        # a stopped instance would lose its cache and still incur disk costs; Google refuses the setting for STANDARD
        instance_termination_action="DELETE" if ends_by_itself else None,
        max_run_duration=(
            compute.InstanceTemplateSchedulingMaxRunDurationArgs(seconds=int(run.total_seconds())) if run else None
        ),
    )


def _affinity(reservation: pulumi.Input[str] | None) -> compute.InstanceTemplateReservationAffinityArgs:
    if reservation is None:
        # an instance must not use capacity that another pool pays for
        return compute.InstanceTemplateReservationAffinityArgs(type="NO_RESERVATION")
    return compute.InstanceTemplateReservationAffinityArgs(
        type="SPECIFIC_RESERVATION",
        specific_reservation=compute.InstanceTemplateReservationAffinitySpecificReservationArgs(
            key="compute.googleapis.com/reservation-name", values=[reservation]
        ),
    )
