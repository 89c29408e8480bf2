"""A scan of Google projects on loopback."""

import json
import threading
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from app.scan import scan
from app.scan_google import PERMISSIONS, GoogleScanAccount, role
from app.watched_tasks import THREAD
from gpufleet.clouds.call_pace import CallPace
from gpufleet.domain.gpu_hours import HourUse
from gpufleet.scan.advice import advise
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import CapacityKind, FailureCode, Scan, Verdict, VerdictReason
from tests.fixtures.scan.google_projects import GoogleCloud, GoogleVm, google_cloud

NOW = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
WINDOWS = ScanWindows(now=NOW)
HOUR = timedelta(hours=1)


def hours(utilization: float, samples: float = 60) -> dict[datetime, tuple[float, float]]:
    return {WINDOWS.end - number * HOUR: (utilization, samples) for number in range(1, 169)}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Generator[GoogleCloud]:
    with google_cloud() as made:
        made.projects["research"] = [
            GoogleVm(name="worker", number=1, gpus=[hours(0)], labels={"owner": "ml"}),
            GoogleVm(name="worker", number=2, zone="europe-west4-b", gpus=[hours(0.4)]),
            GoogleVm(name="member", number=3, gpus=[hours(0)], group="regions/us-central1/workers"),
            GoogleVm(name="blind", number=4),
            GoogleVm(name="stopped", number=5, status="TERMINATED", gpus=[hours(0)]),
            GoogleVm(name="ending", number=6, status="STOPPING", gpus=[hours(0)]),
            GoogleVm(name="web", number=7, type="e2-standard-4", accelerators=0),
        ]
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        yield made


def scanned(cloud: GoogleCloud, *regions: str, limit_s: float = 15, pace: CallPace | None = None) -> Scan:
    accounts = [GoogleScanAccount(name, regions, pace or CallPace(rate=1000)) for name in cloud.projects]
    return scan(accounts, WINDOWS, lambda *_: None, limit_s, regions)


def uses(found: Scan) -> dict[str, tuple[Verdict, VerdictReason]]:
    return {f"{one.instance.zone}/{one.instance.id}": (one.verdict, one.reason) for one in found.instances}


def test_a_project_is_scanned_in_all_regions_with_one_list(cloud: GoogleCloud) -> None:
    found = scanned(cloud)
    assert uses(found) == {
        "us-central1-a/worker": (Verdict.IDLE, VerdictReason.GPU_IDLE),
        "europe-west4-b/worker": (Verdict.IN_USE, VerdictReason.GPU_WORKED),
        "us-central1-a/member": (Verdict.IDLE, VerdictReason.GPU_IDLE),
        "us-central1-a/blind": (Verdict.UNKNOWN, VerdictReason.NO_METRIC),
        "us-central1-a/stopped": (Verdict.STOPPED, VerdictReason.NOT_RUNNING),
        "us-central1-a/ending": (Verdict.STOPPED, VerdictReason.NOT_RUNNING),
    }, "the same name in two zones are two instances; a mean above 0 is work"
    assert not found.all_failures
    (idle,) = (one for one in found.instances if one.owner == "ml")
    assert (idle.idle_hours, idle.measured_hours) == (168, 168)
    assert idle.usd_per_hour and idle.spot_usd_per_hour and idle.waste == 168 * idle.usd_per_hour
    (ending,) = (one for one in found.instances if one.instance.id == "ending")
    assert ending.usd_per_hour is None, "nothing is charged for an instance that ends"
    assert [one for one, _ in cloud.calls if _ == "instances.list"] == ["research"]


def test_calls_are_those_of_the_printed_role(cloud: GoogleCloud) -> None:
    scanned(cloud)
    called = {f"{'monitoring' if one.startswith('time') else 'compute'}.{one}" for one in cloud.operations()}
    assert called == set(PERMISSIONS) == set(role()["includedPermissions"])
    assert json.loads(json.dumps(role()))["stage"] == "GA"


def test_instances_on_all_pages_are_found_and_each_request_is_paced(cloud: GoogleCloud) -> None:
    cloud.page = 2
    waits: list[float] = []
    pace = CallPace(rate=10, clock=lambda: 0.0, sleep=waits.append)
    found = scanned(cloud, pace=pace)
    assert len(found.instances) == 6 and uses(found)["us-central1-a/member"][0] is Verdict.IDLE
    assert len(waits) + 1 == len(cloud.calls) == sum(sum(one.api_calls.values()) for one in found.results)


def test_reservations_and_commitments_are_listed(cloud: GoogleCloud) -> None:
    cloud.reservations = [
        ("us-central1-a", "held", "g2-standard-8", 4, 1),
        ("us-central1-a", "cpu", "n2-standard-8", 4, 1),
    ]
    cloud.commitments = [("us-central1", "three-years", "nvidia-l4", 8)]
    found = scanned(cloud)
    held, committed = found.capacity
    assert (held.kind, held.id, held.total, held.unused) == (CapacityKind.RESERVATION, "held", 4, 3)
    assert held.usd_per_hour and held.region == "us-central1"
    assert (committed.kind, committed.total, committed.unused) == (CapacityKind.COMMITMENT, 8, None)
    assert committed.usd_per_hour is None, "which project uses a commitment is unknown"


def test_a_zone_that_cannot_be_listed_is_named_and_the_others_are_shown(cloud: GoogleCloud) -> None:
    cloud.warnings["asia-east1-a"] = "the zone does not answer"
    cloud.unreachable = ["projects/research/zones/asia-east1-b"]
    found = scanned(cloud)
    assert {(one.what, one.message) for one in found.all_failures} == {
        ("instances of asia-east1-a", "UNREACHABLE: the zone does not answer"),
        ("instances of asia-east1-b", "Google could not reach it"),
    }
    assert len(found.instances) == 6
    assert not scanned(cloud, "us-central1").all_failures, "only wanted regions are named"


def test_only_the_wanted_regions_are_shown(cloud: GoogleCloud) -> None:
    cloud.reservations = [("us-central1-a", "held", "g2-standard-8", 4, 1)]
    found = scanned(cloud, "europe-west4")
    assert list(uses(found)) == ["europe-west4-b/worker"] and not found.capacity


@pytest.mark.parametrize(
    ("operation", "status", "code", "what"),
    [
        pytest.param("instances.list", 403, FailureCode.DENIED, "instances", id="instances denied"),
        pytest.param("instances.list", 401, FailureCode.CREDENTIALS, "instances", id="wrong credentials"),
        pytest.param("timeSeries.list", 403, FailureCode.DENIED, "metrics", id="metrics denied"),
        pytest.param("commitments.list", 403, FailureCode.DENIED, "commitments", id="commitments denied"),
    ],
)
def test_a_refused_call_is_named_with_a_remedy(
    cloud: GoogleCloud, operation: str, status: int, code: FailureCode, what: str
) -> None:
    cloud.refuses[operation] = status
    found = scanned(cloud)
    (failure,) = found.all_failures
    assert (failure.code, failure.what) == (code, what)
    assert ("--print-policy gcp" if status == 403 else "gcloud auth application-default login") in failure.message
    if what == "metrics":
        running = [one.reason for one in found.instances if one.instance.alive]
        assert set(running) == {VerdictReason.METRICS_FAILED}, "nothing is idle without metrics"


def test_the_reason_of_a_refusal_is_shown_and_not_the_address_of_the_request(cloud: GoogleCloud) -> None:
    cloud.refuses["instances.list"] = 403
    cloud.reason = "accessNotConfigured"
    cloud.message = "Compute Engine API has not been used in project 71234567890 before or it is disabled."
    (failure,) = scanned(cloud).all_failures
    assert "failed: accessNotConfigured: Compute Engine API has not been used" in failure.message
    assert failure.message.endswith("; `gcloud services enable compute.googleapis.com --project research`")


def test_incomplete_metrics_prove_nothing(cloud: GoogleCloud) -> None:
    cloud.incomplete = True
    found = scanned(cloud)
    assert [one.what for one in found.all_failures] == ["metrics"]
    assert {one.verdict for one in found.instances} == {Verdict.UNKNOWN, Verdict.STOPPED}


@pytest.mark.parametrize(
    ("ahead", "refused"),
    [
        pytest.param(timedelta(hours=50), True, id="this machine is slow"),
        pytest.param(-timedelta(hours=50), True, id="this machine is fast"),
        pytest.param(timedelta(seconds=30), False, id="nearly the same"),
    ],
)
def test_metrics_are_refused_if_the_clock_of_this_machine_is_wrong(
    cloud: GoogleCloud, ahead: timedelta, refused: bool
) -> None:
    cloud.ahead = ahead
    found = scanned(cloud)
    if not refused:
        assert not found.all_failures
        return
    (failure,) = found.all_failures
    assert failure.what == "metrics" and failure.message.endswith("synchronize the clock of this machine")
    reasons = {one.reason for one in found.instances if one.instance.alive}
    assert reasons == {VerdictReason.METRICS_FAILED}, "old hours are not the last ones"


def test_instances_are_shown_although_the_metrics_hang(cloud: GoogleCloud) -> None:
    cloud.never_answers = frozenset({"timeSeries.list"})
    found = scanned(cloud, limit_s=2)
    assert {one.what for one in found.all_failures} == {"metrics", "reservations", "commitments"}
    assert {one.code for one in found.all_failures} == {FailureCode.TIMEOUT}
    assert uses(found)["us-central1-a/worker"] == (Verdict.UNKNOWN, VerdictReason.METRICS_FAILED)
    asked = set(cloud.calls)
    cloud.ended.set()
    for thread in [one for one in threading.enumerate() if one.name == THREAD]:
        thread.join()
    assert set(cloud.calls) == asked, "a project that was given up is not asked for more"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        pytest.param([hours(0), hours(0)], Verdict.IDLE, id="both GPUs"),
        pytest.param([hours(0)], Verdict.UNKNOWN, id="one of two GPUs"),
        pytest.param([hours(0), hours(0, samples=50)], Verdict.UNKNOWN, id="missing samples"),
        pytest.param([hours(0), hours(float("nan"))], Verdict.UNKNOWN, id="invalid values"),
        pytest.param([hours(0), hours(float("inf"))], Verdict.UNKNOWN, id="infinite values"),
        pytest.param([hours(0), hours(101)], Verdict.UNKNOWN, id="more than 100 %"),
        pytest.param([hours(0), hours(12)], Verdict.IN_USE, id="one works"),
    ],
)
def test_gpus_of_a_machine_without_a_catalogue_entry_are_those_of_the_instance(
    cloud: GoogleCloud, values: list[dict[datetime, tuple[float, float]]], verdict: Verdict
) -> None:
    cloud.projects["research"] = [GoogleVm(name="old", number=9, type="n1-standard-8", accelerators=2, gpus=values)]
    (one,) = scanned(cloud).instances
    assert (one.verdict, one.usd_per_hour) == (verdict, None), "an N1 machine with GPUs has no packaged price"


def test_advice_stops_an_instance_and_deletes_a_member_of_a_group(cloud: GoogleCloud) -> None:
    cloud.projects["research"].append(GoogleVm(name="spot", number=8, zone="us-east1-c", spot=True, gpus=[hours(0)]))
    commands = {one.command for one in advise(scanned(cloud)) if one.is_saving}
    assert commands == {
        "gcloud compute instances stop worker --zone us-central1-a --project research",
        "gcloud compute instances stop spot --zone us-east1-c --project research",
        "gcloud compute instance-groups managed delete-instances workers --instances member --region us-central1"
        " --project research",
        "gpufleet init --cloud gcp --account research --region europe-west4 --machine-type g2-standard-8",
    }


def test_an_hour_without_both_answers_is_incomplete() -> None:
    from gpufleet.clouds.gcp.monitoring import CloudMonitoring

    class Session:
        headers: ClassVar[dict[str, str]] = {}

        def get(self, url: str, params: dict[str, str], timeout: float) -> "Session":
            self.ok, self.asked = True, params
            return self

        def json(self) -> object:
            name = "doubleValue" if self.asked["aggregation.perSeriesAligner"] == "ALIGN_MAX" else "int64Value"
            points = [
                {"interval": {"endTime": "2026-11-26T12:00:00Z"}, "value": {name: "0"}},
                {"interval": {"endTime": "2026-11-26T11:59:00Z"}, "value": {name: "0"}},
            ]
            labels = {"labels": {"instance_id": "1"}}
            return {"timeSeries": [{"resource": labels, "metric": {"labels": {}}, "points": points}]}

    found = CloudMonitoring("p", session=Session()).gpu_hours(WINDOWS.start, WINDOWS.end)
    at = datetime(2026, 11, 26, 11, tzinfo=UTC)
    assert found == {"1": {at: HourUse(gpus=1, samples=0, utilization_max=0)}}, "not a whole hour: ignored"
