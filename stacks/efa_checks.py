"""Checks of pools with EFA (AWS: EFA interfaces and a cluster placement group)."""

from collections.abc import Iterator

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import Problem


def check(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Yield every requirement of EFA that the pool does not meet. A pool without EFA has no problems."""
    if pool.network != "efa":
        return
    if settings.cloud is not Cloud.AWS:
        remedy = "remove it; Google Cloud's machine types have their own network between GPUs"
        yield Problem(path=f"{path}.network", wrong="is only for AWS", value=pool.network, remedy=remedy)
        return
    capacity = pool.capacity
    for index, reserved in enumerate(capacity.reserved):
        yield from _have_efa(f"{path}.capacity.reserved.{index}.machine_type", (reserved.machine_type,), one=True)
    for kind, part in (("spot", capacity.spot), ("on_demand", capacity.on_demand)):
        if part is not None:
            yield from _have_efa(f"{path}.capacity.{kind}.machine_types", part.machine_types)
    zones = (capacity.on_demand.zones or settings.zones) if capacity.on_demand else ()
    if len(zones) > 1:
        yield Problem(
            path=f"{path}.capacity.on_demand.zones",
            wrong=f"names {len(zones)} zones, and machines with EFA must be in the same zone",
            value=list(zones),
            remedy="name one zone, or remove network: efa",
        )


def _have_efa(path: str, names: tuple[str, ...], *, one: bool = False) -> Iterator[Problem]:
    counts: set[int] = set()
    for index, name in enumerate(names):
        try:
            machine = catalogue.machine(Cloud.AWS, name)
        except catalogue.UnknownMachineError:
            continue  # other checks of the pool report it
        if machine.efa_interfaces:
            counts.add(machine.efa_interfaces)
            continue
        yield Problem(
            path=path if one else f"{path}.{index}",
            wrong="does not have EFA" if machine.efa_interfaces == 0 else "has EFA interfaces in an unknown order",
            value=name,
            remedy=_remedy(machine),
        )
    if len(counts) > 1:
        yield Problem(
            path=path,
            wrong=f"names machine types with {' and '.join(map(str, sorted(counts)))} EFA interfaces, and one launch"
            " template needs the same number for all",
            value=list(names),
            remedy="keep machine types with the same number; use the others in another pool",
        )


def _remedy(wanted: catalogue.MachineType) -> str:
    found = [m for m in catalogue.machines(Cloud.AWS) if m.gpu == wanted.gpu and m.efa_interfaces]
    nearest = sorted(found, key=lambda m: (m.gpu_count != wanted.gpu_count, m.vcpus, m.name))
    if not nearest:
        return "remove network: efa"
    return f"choose {' or '.join(m.name for m in nearest[:2])}, or remove network: efa"
