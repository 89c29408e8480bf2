"""A Google Cloud project as a scan reads it: each list has all regions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.scan import RegionFacts, reserved
from gpufleet.clouds.call_pace import CallPace
from gpufleet.clouds.gcp import project as google
from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.monitoring import PERMISSION, CloudMonitoring
from gpufleet.clouds.gcp.project import GoogleProject, ProjectInstance
from gpufleet.clouds.progress import Touch
from gpufleet.domain.activity import CloudError
from gpufleet.domain.gpu_hours import HoursOfInstances
from gpufleet.domain.model import Cloud
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import CapacityKind, ScannedCapacity, ScanScope, key_of

PERMISSIONS: Final = (*google.PERMISSIONS, PERMISSION)
"""Everything that a scan needs."""


class GoogleScanAccount:
    """A project. It is one scope, which one thread reads."""

    def __init__(self, project: str, regions: Sequence[str] = (), pace: CallPace | None = None) -> None:
        """`regions`: not empty: only what is in them."""
        self.name = project
        """The project's id."""
        self._regions = regions
        self._pace = pace or CallPace()

    @property
    def cloud(self) -> Cloud:
        return Cloud.GCP

    def scopes(self, touch: Touch) -> Sequence[ScanScope]:
        """The project."""
        del touch
        return [ScanScope(Cloud.GCP, self.name)]

    def read(self, scope: ScanScope, windows: ScanWindows, touch: Touch, facts: RegionFacts) -> None:
        """Read the project. Raises CloudError if its instances cannot be listed."""

        def before() -> None:
            touch()
            self._pace.wait()
            touch()

        project = GoogleProject(GoogleCalls(self.name, before=before))
        facts.api_calls = project.calls.counts
        found = [one for one in project.gpus() if self._is_wanted(one.instance.region)]
        facts.instances = [one.instance for one in found]
        facts.gpus = {key_of(one.instance): one.gpus for one in found if one.gpus is not None}
        parts: dict[str, Callable[[], None]] = {
            "reservations": lambda: self._reservations(facts, scope, project),
            "commitments": lambda: self._commitments(facts, scope, project),
        }
        if any(one.instance.alive for one in found):
            store = CloudMonitoring(self.name, before)
            store.counts = project.calls.counts
            parts = {"metrics": lambda: _metrics(facts, store, found, windows), **parts}
        else:
            facts.hours = {}
        facts.read_parts(parts)
        for what, message in project.failures.items():
            if self._is_wanted_place(what):
                facts.failures[what] = CloudError(message)

    def _is_wanted(self, region: str) -> bool:
        return not self._regions or region in self._regions

    def _is_wanted_place(self, what: str) -> bool:
        place = what.partition(" of ")[2].partition(":")[0]
        return self._is_wanted(place) or self._is_wanted(place.rpartition("-")[0])

    def _reservations(self, facts: RegionFacts, scope: ScanScope, project: GoogleProject) -> None:
        facts.add_capacity(
            reserved(CapacityKind.RESERVATION, scope, one)
            for one in project.reservations()
            if one.instances and self._is_wanted(one.region)
        )

    def _commitments(self, facts: RegionFacts, scope: ScanScope, project: GoogleProject) -> None:
        """Google applies a commitment to all projects that share it: how many are unused is unknown."""
        facts.add_capacity(
            ScannedCapacity(
                kind=CapacityKind.COMMITMENT,
                scope=scope,
                id=one.name,
                place=one.region,
                machine_type=one.accelerator,
                total=one.amount,
                unused=None,
                usd_per_hour=None,
            )
            for one in project.commitments()
            if self._is_wanted(one.region)
        )


def _metrics(
    facts: RegionFacts, store: CloudMonitoring, found: Sequence[ProjectInstance], windows: ScanWindows
) -> None:
    keys = {str(one.number): key_of(one.instance) for one in found}
    hours: HoursOfInstances = store.gpu_hours(windows.start, windows.end)
    facts.hours = {keys[number]: use for number, use in hours.items() if number in keys}


def role() -> Mapping[str, Any]:
    """The custom role that a scan needs, for `gcloud iam roles create --file`."""
    return {
        "title": "gpufleet scan",
        "description": "Lists GPU instances, reservations, commitments and GPU metrics",
        "stage": "GA",
        "includedPermissions": sorted(PERMISSIONS),
    }
