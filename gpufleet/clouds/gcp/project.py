"""GPU instances, reservations and commitments of a whole project: one list each, with all regions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.group_lists import group_of
from gpufleet.clouds.gcp.instance_history import is_paid, paid_capacity
from gpufleet.clouds.gcp.instance_parser import has_accelerator, parse
from gpufleet.clouds.gcp.operations import PAGE
from gpufleet.domain.instance_history import PaidCapacity
from gpufleet.domain.model import Instance

PERMISSIONS: Final = ("compute.commitments.list", "compute.instances.list", "compute.reservations.list")
"""What the lists need."""
_EMPTY: Final = "NO_RESULTS_ON_PAGE"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectInstance:
    """An instance, and what only the list of a project states about it."""

    instance: Instance
    """Its group has the form `zones/ZONE/NAME` or `regions/REGION/NAME`."""
    number: int
    """Its numeric id, which metrics name."""
    gpus: int | None
    """Number of attached GPUs; None: not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """Accelerators that are paid for until the end of a contract, used or not."""

    name: str
    region: str
    accelerator: str
    amount: int


@dataclass(slots=True)
class GoogleProject:
    """Reads the lists. Locations that fail, and resources that cannot be read, are in `failures`."""

    calls: GoogleCalls
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Message by location, or by location and name."""

    def gpus(self) -> list[ProjectInstance]:
        """All instances with accelerators, whoever created them. Raises CloudError if a page fails."""
        return list(self._each("instances", "instances", _instance, has_accelerator))

    def reservations(self) -> list[PaidCapacity]:
        """Paid reservations of machines with accelerators. Raises CloudError if a page fails."""
        return list(self._each("reservations", "reservations", paid_capacity, _has_reserved_accelerator))

    def commitments(self) -> list[Commitment]:
        """Accelerators of active commitments. Raises CloudError if a page fails."""
        found = self._each("region_commitments", "commitments", _commitment, lambda raw: raw.status == "ACTIVE")
        return [one for listed in found for one in listed]

    def _each(
        self, service: str, field_name: str, read: Callable[[Any, str], _T], wanted: Callable[[Any], bool]
    ) -> Iterator[_T]:
        # with partial success, a location that fails is named, and the others are listed
        pages = self.calls.pages(service, "aggregated_list", max_results=PAGE, return_partial_success=True)
        for path, scoped in pages:
            place = str(path).rsplit("/", 1)[-1]
            if scoped.warning.code and scoped.warning.code != _EMPTY:
                self.failures[f"{field_name} of {place}"] = f"{scoped.warning.code}: {scoped.warning.message}"
            for raw in filter(wanted, getattr(scoped, field_name)):
                try:
                    yield read(raw, place)
                except ValueError as error:
                    self.failures[f"{field_name} of {place}: {raw.name}"] = f"cannot be read: {error}"
        for path in sorted(self.calls.unreachable):
            self.failures.setdefault(f"{field_name} of {path.rsplit('/', 1)[-1]}", "Google could not reach it")
        self.calls.unreachable.clear()


def _instance(raw: Any, zone: str) -> ProjectInstance:
    group = group_of(raw)
    return ProjectInstance(
        instance=parse(raw, zone, None if group is None else "/".join(group), None),
        number=int(raw.id),
        gpus=sum(int(one.accelerator_count) for one in raw.guest_accelerators) or None,
    )


def _has_reserved_accelerator(raw: Any) -> bool:
    return is_paid(raw) and has_accelerator(raw.specific_reservation.instance_properties)


def _commitment(raw: Any, region: str) -> list[Commitment]:
    return [
        Commitment(
            name=raw.name,
            region=region,
            accelerator=part.accelerator_type.rsplit("/", 1)[-1],
            amount=int(part.amount),
        )
        for part in raw.resources
        if part.type_ == "ACCELERATOR" and part.amount
    ]
