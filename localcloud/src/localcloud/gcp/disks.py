"""Disks: those of an instance, and persistent disks, which one instance at a time may attach."""

from collections.abc import Iterator

from localcloud.gcp.errors import not_found
from localcloud.gcp.locations import PROJECT
from localcloud.gcp.operations import OperationFailure
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Row, key_of, path_of


def described(state: GoogleState, row: Row, zone: str) -> list[Row]:
    """The field `disks` of an instance."""
    found: list[Row] = []
    for index, disk in enumerate(row.get("disks", ())):
        scratch = disk.get("type") == "SCRATCH"
        asked: Row = disk.get("initializeParams", {})
        name = row["name"] if disk.get("boot") else f"{row['name']}-{index}"
        link = disk.get("source") or state.store.url(f"projects/{PROJECT}/zones/{zone}/disks/{name}")
        found.append(
            {
                "kind": "compute#attachedDisk",
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "boot": False,
                "autoDelete": scratch or disk.get("autoDelete", False),
                "interface": "NVME" if scratch else "SCSI",
                **disk,
                "index": index,
                "deviceName": disk.get("deviceName") or ("local-ssd-0" if scratch else f"persistent-disk-{index}"),
                "diskSizeGb": str(disk.get("diskSizeGb") or asked.get("diskSizeGb") or (375 if scratch else 10)),
                **({} if scratch else {"source": link}),
            }
        )
    return found


def attached(state: GoogleState, row: Row) -> Iterator[tuple[Row, str]]:
    """The persistent disks that an instance has attached, each with its device name."""
    for index, disk in enumerate(row.get("disks", ())):
        if _is_own(disk) and (found := _find(state, disk)) is not None:
            yield found, disk.get("deviceName") or f"persistent-disk-{index}"


def refusal(state: GoogleState, wanted: Row) -> OperationFailure | None:
    """The error if a named disk is in use elsewhere, or None. Raises ApiError for an unknown disk."""
    for disk in filter(_is_own, wanted.get("disks", ())):
        if _find(state, disk) is None:
            raise not_found(disk["source"])
    for disk, _ in attached(state, wanted):
        for user in state.machines.values():
            if any(other is disk for other, _ in attached(state, user.row)):
                message = (
                    f"The disk resource '{path_of(disk['selfLink'])}' is already being used by '{user.key.path}'"
                )
                return OperationFailure(code="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", message=message)
    return None


def _is_own(disk: Row) -> bool:
    return bool(disk.get("source")) and not disk.get("boot") and disk.get("type") != "SCRATCH"


def _find(state: GoogleState, disk: Row) -> Row | None:
    key = key_of(disk["source"])
    return state.store.find(key) if key else None
