"""Resources that always exist: project, regions, zones, machine types, accelerators, images."""

from typing import Any, Final

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from localcloud.capacity_kind import Kind
from localcloud.gcp.calls import Call, aggregated, page
from localcloud.gcp.capacity import gpus, metric
from localcloud.gcp.errors import not_found
from localcloud.gcp.locations import DEFAULT_ACCOUNT, PROJECT, PROJECT_NUMBER, REGION, ZONES
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Row

_SMALL: Final = {"e2-micro": (2, 1024), "e2-small": (2, 2048), "e2-medium": (2, 4096), "e2-standard-2": (2, 8192)}
"""Virtual CPUs and MB of machines without GPUs that a control host may have."""
_MADE: Final = "2026-01-01T00:00:00.000+00:00"


def _link(state: GoogleState, path: str) -> str:
    return state.store.url(f"projects/{PROJECT}/{path}")


def _zone(state: GoogleState, name: str) -> Row:
    return {
        "kind": "compute#zone",
        "id": str(2000 + ZONES.index(name)),
        "creationTimestamp": _MADE,
        "name": name,
        "description": name,
        "status": "UP",
        "region": _link(state, f"regions/{REGION}"),
        "selfLink": _link(state, f"zones/{name}"),
        "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Sapphire Rapids"],
    }


def _region(state: GoogleState) -> Row:
    return {
        "kind": "compute#region",
        "id": "1000",
        "creationTimestamp": _MADE,
        "name": REGION,
        "description": REGION,
        "status": "UP",
        "zones": [_link(state, f"zones/{zone}") for zone in ZONES],
        "quotas": _quotas(state),
        "selfLink": _link(state, f"regions/{REGION}"),
    }


def _quotas(state: GoogleState) -> list[Row]:
    found: list[Row] = []
    for model in sorted({model for model, _ in (gpus(one.name) for one in catalogue.machines(Cloud.GCP)) if model}):
        for kind in Kind:
            used = sum(
                count
                for one in state.machines.values()
                if one.use.quota is kind and one.status != "TERMINATED"
                for name, count in [gpus(one.machine_type)]
                if name == model
            )
            limit = float(state.capacity.quota(kind))
            found.append({"metric": metric(model, kind), "limit": limit, "usage": float(used)})
    return found


def _machine_types(state: GoogleState, zone: str) -> list[Row]:
    found = [(name, cpus, memory, None) for name, (cpus, memory) in _SMALL.items()]
    rows = [_machine_type(state, zone, *one) for one in found]
    for machine in catalogue.machines(Cloud.GCP):
        accelerators = [
            {"guestAcceleratorType": accelerator_name(machine), "guestAcceleratorCount": machine.gpu_count}
        ]
        rows.append(_machine_type(state, zone, machine.name, machine.vcpus, machine.memory_mib, accelerators))
    return rows


def _machine_type(  # noqa: PLR0913
    state: GoogleState, zone: str, name: str, cpus: int, memory: int, accelerators: list[Row] | None
) -> Row:
    return {
        "kind": "compute#machineType",
        "id": str(3000 + sum(map(ord, name))),
        "creationTimestamp": _MADE,
        "name": name,
        "description": f"{cpus} vCPUs, {memory / 1024:g} GB RAM",
        "guestCpus": cpus,
        "memoryMb": memory,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "isSharedCpu": name.startswith("e2-") and "standard" not in name,
        "zone": zone,
        "selfLink": _link(state, f"zones/{zone}/machineTypes/{name}"),
        **({"accelerators": accelerators} if accelerators else {}),
    }


def accelerator_name(machine: catalogue.MachineType) -> str:
    """Google's name of the accelerator type. Source: recorded list of accelerator types, 2026-07-01."""
    family = machine.name.partition("-")[0]
    if machine.accelerator is catalogue.AcceleratorKind.TPU:
        return family
    if machine.name.startswith("a3-mega"):
        return "nvidia-h100-mega-80gb"
    return _NVIDIA_NAMES.get(machine.gpu, f"nvidia-{machine.gpu.lower()}")


_NVIDIA_NAMES: Final = {"A100-40GB": "nvidia-tesla-a100", "B200-180GB": "nvidia-b200"}
"""Names that differ from `nvidia-` and the model's name."""


def _accelerators(state: GoogleState, zone: str) -> list[Row]:
    names = sorted({accelerator_name(machine) for machine in catalogue.machines(Cloud.GCP)})
    return [
        {
            "kind": "compute#acceleratorType",
            "id": str(4000 + number),
            "creationTimestamp": _MADE,
            "name": name,
            "description": name,
            "maximumCardsPerInstance": 8,
            "zone": _link(state, f"zones/{zone}"),
            "selfLink": _link(state, f"zones/{zone}/acceleratorTypes/{name}"),
        }
        for number, name in enumerate(names)
    ]


_PER_ZONE: Final[dict[str, Any]] = {"machineTypes": _machine_types, "acceleratorTypes": _accelerators}


def is_machine_type(state: GoogleState, zone: str, name: str) -> bool:
    """Whether the zone has this machine type."""
    return any(row["name"] == name for row in _machine_types(state, zone))


def _get(state: GoogleState, call: Call) -> Row:
    match call.method_id:
        case "zones.get" if call.parameters["zone"] in ZONES:
            return _zone(state, call.parameters["zone"])
        case "regions.get" if call.parameters["region"] == REGION:
            return _region(state)
        case "machineTypes.get" | "acceleratorTypes.get":
            rows = _PER_ZONE[call.collection](state, call.parameters["zone"])
            name = call.path.rpartition("/")[2]
            found = next((row for row in rows if row["name"] == name), None)
            if found is not None:
                return found
        case _:
            pass
    raise not_found(call.path)


def _list(state: GoogleState, call: Call) -> Row:
    match call.method_id:
        case "zones.list":
            return page(call, [_zone(state, zone) for zone in ZONES], "zoneList")
        case "regions.list":
            return page(call, [_region(state)], "regionList")
        case _:
            kind = f"{call.collection.removesuffix('s')}List"
            return page(call, _PER_ZONE[call.collection](state, call.parameters["zone"]), kind)


def _aggregated(state: GoogleState, call: Call) -> Row:
    collection = call.path.rpartition("/")[2]
    rows = {f"zones/{zone}": _PER_ZONE[collection](state, zone) for zone in ZONES}
    return aggregated(call, rows, f"{collection.removesuffix('s')}AggregatedList", collection)


def _project(state: GoogleState, call: Call) -> Row:
    return {
        "kind": "compute#project",
        "id": PROJECT_NUMBER,
        "creationTimestamp": _MADE,
        "name": PROJECT,
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAA"},
        "quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 256.0, "usage": 0.0}],
        "defaultServiceAccount": DEFAULT_ACCOUNT,
        "defaultNetworkTier": "PREMIUM",
        "selfLink": state.store.url(f"projects/{PROJECT}"),
    }


def _image(state: GoogleState, call: Call) -> Row:
    """Any image name is valid: the contents of images are never read."""
    family = call.parameters.get("family")
    name = call.parameters.get("image") or f"{family}-v20261101"
    project = call.parameters["project"]
    return {
        "kind": "compute#image",
        "id": str(5000 + sum(map(ord, name))),
        "creationTimestamp": _MADE,
        "name": name,
        "family": family or name.rpartition("-v")[0],
        "status": "READY",
        "diskSizeGb": "10",
        "archiveSizeBytes": "1073741824",
        "sourceType": "RAW",
        "selfLink": state.store.url(f"projects/{project}/global/images/{name}"),
    }


def handlers() -> dict[str, Any]:
    """By method id."""
    found: dict[str, Any] = {
        "projects.get": _project,
        "images.get": _image,
        "images.getFromFamily": _image,
        "machineTypes.aggregatedList": _aggregated,
        "acceleratorTypes.aggregatedList": _aggregated,
    }
    for collection in ("zones", "regions", "machineTypes", "acceleratorTypes"):
        found |= {f"{collection}.get": _get, f"{collection}.list": _list}
    return found
