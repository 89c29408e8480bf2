"""What a metrics store of the user shows about instances of a scan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from app.scan import failure_of
from app.scan_evidence import PrometheusStore, verdict_of, with_evidence
from gpufleet.clouds.progress import Touch
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs import slice_use
from gpufleet.costs.samples import RawSeries
from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.scan import summary
from gpufleet.scan.judge import ScanWindows, UseVerdict, combine
from gpufleet.scan.model import FailureCode, Scan, ScannedInstance, ScanScope, ScopeResult, Verdict, VerdictReason
from gpufleet.scan.page import page
from tests.fixtures.costs.unit_series import gpu, mig, series_of
from tests.fixtures.watchdogs.orphans import orphan
from tests.fixtures.watchdogs.pages import scraped
from tests.fixtures.watchdogs.plain import QUIET_ENGINE, QUIET_GPU, START

WINDOWS = ScanWindows(now=START)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
ENGINE = replace(QUIET_ENGINE, started_age=timedelta(days=30))
BUSY_ENGINE = replace(ENGINE, running_max=2.0)
GPU = QUIET_GPU
BUSY_GPU = replace(GPU, active_max=0.9)
ONE = orphan(1)


def evidence(engine: EngineEvidence | None, gpu: GpuEvidence | None) -> Evidence:
    return Evidence(window=DAY, interval=timedelta(seconds=15), engine=engine, gpu=gpu, reached=None)


@pytest.mark.parametrize(
    ("engine", "gpu", "changes", "verdict", "reason"),
    [
        pytest.param(None, GPU, {}, Verdict.IDLE, VerdictReason.GPU_IDLE, id="GPUs at rest"),
        pytest.param(ENGINE, GPU, {}, Verdict.IDLE, VerdictReason.GPU_IDLE, id="both at rest"),
        pytest.param(ENGINE, None, {}, Verdict.LIKELY_IDLE, VerdictReason.ENGINE_IDLE, id="engine at rest"),
        pytest.param(None, BUSY_GPU, {}, Verdict.IN_USE, VerdictReason.GPU_WORKED, id="GPUs work"),
        pytest.param(BUSY_ENGINE, GPU, {}, Verdict.IN_USE, VerdictReason.ENGINE_WORKED, id="engine works"),
        pytest.param(
            replace(ENGINE, counter_changes=3.0), None, {}, Verdict.IN_USE, VerdictReason.ENGINE_WORKED, id="tokens"
        ),
        pytest.param(None, None, {}, None, None, id="nothing reported"),
        pytest.param(None, replace(GPU, coverage=0.5), {}, None, None, id="half of the window"),
        pytest.param(
            ENGINE, replace(GPU, coverage=0.5), {}, Verdict.LIKELY_IDLE, VerdictReason.ENGINE_IDLE, id="only engine"
        ),
        pytest.param(replace(ENGINE, unknown="a new release"), GPU, {}, None, None, id="an unknown engine"),
        pytest.param(None, GPU, {"machine_type": "g6.12xlarge"}, None, None, id="one of four GPUs"),
        pytest.param(None, GPU, {"machine_type": "g99.xlarge"}, None, None, id="an unknown machine type"),
        pytest.param(None, GPU, {"launched_at": START - timedelta(hours=5)}, None, None, id="too young"),
        pytest.param(
            None, GPU, {"capacity_type": CapacityType.RESERVED}, Verdict.IDLE, VerdictReason.GPU_IDLE, id="prepaid"
        ),
        pytest.param(
            None, GPU, {"tags": {"gpu-fleet:keep-until": "2099-01-01T00:00:00Z"}}, Verdict.IDLE,
            VerdictReason.GPU_IDLE, id="a keep tag is not work",
        ),
    ],
)  # fmt: skip
def test_gpu_metrics_are_certain_and_engine_metrics_are_likely(
    engine: EngineEvidence | None,
    gpu: GpuEvidence | None,
    changes: Mapping[str, Any],
    verdict: Verdict | None,
    reason: VerdictReason | None,
) -> None:
    found = verdict_of(replace(ONE, **changes), evidence(engine, gpu), WINDOWS)
    assert ((None, None) if found is None else (found.verdict, found.reason)) == (verdict, reason)
    if verdict is Verdict.IDLE:
        assert found is not None and (found.idle_hours, found.measured_hours) == (24, 24)
    elif found is not None:
        assert found.idle_hours == 0


IDLE = UseVerdict(verdict=Verdict.IDLE, reason=VerdictReason.GPU_IDLE, idle_hours=100, measured_hours=168)
DAY_IDLE = replace(IDLE, idle_hours=24, measured_hours=24)
USED = UseVerdict(verdict=Verdict.IN_USE, reason=VerdictReason.GPU_WORKED, idle_hours=50, measured_hours=168)
ENGINE_USED = UseVerdict(verdict=Verdict.IN_USE, reason=VerdictReason.ENGINE_WORKED)
UNKNOWN = UseVerdict(verdict=Verdict.UNKNOWN, reason=VerdictReason.NO_METRIC)
LIKELY = UseVerdict(verdict=Verdict.LIKELY_IDLE, reason=VerdictReason.ENGINE_IDLE)
STOPPED = UseVerdict(verdict=Verdict.STOPPED, reason=VerdictReason.NOT_RUNNING)


@pytest.mark.parametrize(
    ("known", "other", "expected"),
    [
        pytest.param(UNKNOWN, DAY_IDLE, DAY_IDLE, id="the store proves it"),
        pytest.param(UNKNOWN, LIKELY, LIKELY, id="the store makes it likely"),
        pytest.param(UNKNOWN, ENGINE_USED, ENGINE_USED, id="the store sees work"),
        pytest.param(IDLE, DAY_IDLE, IDLE, id="both prove it: the cloud has more hours"),
        pytest.param(IDLE, LIKELY, IDLE, id="certain stays certain"),
        pytest.param(IDLE, ENGINE_USED, ENGINE_USED, id="a contradiction cancels waste"),
        pytest.param(USED, DAY_IDLE, USED, id="the cloud saw work"),
        pytest.param(STOPPED, DAY_IDLE, STOPPED, id="stopped"),
    ],
)
def test_work_wins_over_idleness(known: UseVerdict, other: UseVerdict, expected: UseVerdict) -> None:
    assert combine(known, other) == expected


@dataclass
class FakeStore:
    """A store with evidence by instance id."""

    name: str
    found: Mapping[str, Evidence] = field(default_factory=dict[str, Evidence])
    error: str = ""
    missing: CloudError | None = None
    series: Sequence[RawSeries] = ()
    asked: list[str] = field(default_factory=list)

    def gather(self, ids: Sequence[str], windows: ScanWindows, touch: Touch) -> Mapping[str, Evidence]:
        touch()
        self.asked += ids
        if self.error:
            raise CloudError(self.error)
        return self.found


def result(scope: ScanScope, *names: str) -> ScopeResult:
    return ScopeResult(
        scope=scope,
        instances=[
            ScannedInstance(
                instance=replace(ONE, id=name),
                account=scope.account,
                owner=None,
                usd_per_hour=Decimal(1),
                verdict=Verdict.UNKNOWN,
                reason=VerdictReason.NO_METRIC,
            )
            for name in names
        ],
    )


def test_a_store_that_fails_is_named_and_makes_nothing_idle() -> None:
    quiet = {"i-1": evidence(None, GPU)}
    stores = [
        FakeStore("http://broken", quiet, "no answer"),
        FakeStore("http://well", {"i-2": evidence(ENGINE, None)}),
    ]
    found, failed = with_evidence([result(ScanScope(Cloud.AWS, "1"), "i-1", "i-2")], stores, WINDOWS, 15)
    assert [one.verdict for one in found[0].instances] == [Verdict.UNKNOWN, Verdict.LIKELY_IDLE]
    assert {scope.account: str(error) for scope, error in failed.items()} == {"http://broken": "no answer"}


def test_metrics_that_prove_nothing_are_named_and_the_other_evidence_of_the_store_counts() -> None:
    unusable = CloudError("job 'dcgm': not relabelled", FailureCode.NOT_USABLE)
    store = FakeStore("http://raw", {"i-1": evidence(BUSY_ENGINE, None)}, missing=unusable)
    found, failed = with_evidence([result(ScanScope(Cloud.AWS, "1"), "i-1")], [store], WINDOWS, 15)
    assert [one.verdict for one in found[0].instances] == [Verdict.IN_USE]
    ((scope, error),) = failed.items()
    failure = failure_of(scope, "metrics", error)
    assert (failure.code, failure.message) == (FailureCode.NOT_USABLE, "job 'dcgm': not relabelled")


def mig_node(at: int) -> str:
    """Tenant one works, two is idle, and tenant three is not always reported."""
    page = mig(at, {1: 0.7, 2: 0.0}, pods={1: "one", 2: "two"})
    return page + (mig(at, {3: 0.0}, pods={3: "three"}) if at % 600 >= 300 else "")


def with_prices(scope: ScanScope, machine_types: Mapping[str, str]) -> ScopeResult:
    """A region with instances on Google Cloud at 7 USD per hour, by name."""
    found = result(scope, *machine_types)
    priced = [
        replace(
            one,
            instance=replace(one.instance, cloud=Cloud.GCP, machine_type=machine_types[one.instance.id]),
            usd_per_hour=Decimal(7),
        )
        for one in found.instances
    ]
    return replace(found, instances=priced)


SLICES = [
    ("node", "2", "ns/two", "idle", "2/7", "2.000000000"),
    ("node", None, None, "stranded", "1/7", "1.000000000"),
    ("node", "3", "ns/three", "unknown", "2/7", "2.000000000"),
    ("node", "1", "ns/one", "in use", "2/7", "2.000000000"),
]


def shown_slices(instance: Mapping[str, Any]) -> list[tuple[str | None, ...]]:
    """The slices of an instance in the document of a scan."""
    return [
        (
            one["instance"],
            one["slice"],
            next((user["name"] for user in one["users"]), None),
            one["use"],
            one["share_of_device"],
            one["usd_per_hour"],
        )
        for one in instance["slices"]
    ]


def test_slices_of_an_instance_in_use_are_shown_in_json_and_page_and_not_in_the_waste() -> None:
    """The store of another tenant repeats the series; the instance without slices has none."""
    series = series_of(mig_node, START - HOUR, 3601, labels={"instance_id": "node"})
    stores = [FakeStore(name, {"node": evidence(None, BUSY_GPU)}, series=series) for name in ("s", "copy")]
    results, failed = with_evidence(
        [with_prices(ScanScope(Cloud.GCP, "a"), {"node": "a2-ultragpu-1g", "whole": "a2-ultragpu-1g"})],
        stores, WINDOWS, 15,
    )  # fmt: skip
    scan = Scan(at=START, window=7 * DAY, idle_window=DAY, results=results, failures=())
    shown = summary.document(scan, (), {})
    node, whole = sorted(shown["instances"], key=lambda one: one["id"])
    assert (failed, shown["slice_window_s"], whole["slices"]) == ({}, 3600, [])
    assert (node["use"], node["waste_usd"], shown["totals"]["waste_usd"]) == ("in use", "0", "0")
    assert shown_slices(node) == SLICES
    html = page(scan, ())
    assert "<td>ns/two</td><td>idle</td>" in html and slice_use.RECLAIM in html


@pytest.mark.slow
def test_slices_are_read_from_a_real_store(tmp_path: Path) -> None:
    pages = [mig_node(at) for at in range(0, 3601, 30)]
    alone = [gpu(at, 0.3, {"one": ""}) for at in range(0, 3601, 30)]
    two = [gpu(at, 0.3, {"one": "", "two": ""}) for at in range(0, 3601, 30)]
    every = {"node": pages, "whole": alone, "shared": two}
    with scraped(every, tmp_path, newest=START, every=timedelta(seconds=30)) as held:
        store = PrometheusStore(held._url)  # pyright: ignore[reportPrivateUsage]
        windows = ScanWindows(now=START, idle=2 * HOUR)
        types = dict.fromkeys(every, "a2-ultragpu-1g")
        (found,), failed = with_evidence([with_prices(ScanScope(Cloud.GCP, "a"), types)], [store], windows, 60)
    shown = {one["id"]: one for one in summary.document(_scan_of(found), (), {})["instances"]}
    assert failed == {}
    assert {one.labels["instance_id"] for one in store.series} == {"node", "shared"}, "whole GPUs are not read"
    assert shown_slices(shown["node"]) == SLICES
    ((*_, users),) = [(one["use"], one["users"]) for one in shown["shared"]["slices"]]
    assert users == [{"name": "ns/one", "use": "unknown"}, {"name": "ns/two", "use": "unknown"}]
    assert shown["whole"]["slices"] == []


def _scan_of(found: ScopeResult) -> Scan:
    return Scan(at=START, window=7 * DAY, idle_window=DAY, results=[found], failures=())


def test_slices_that_cannot_be_read_are_named_and_the_other_evidence_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[RawSeries]:
        raise CloudError("http://user:secret@store: too many samples")

    monkeypatch.setattr(PrometheusSamples, "query", lambda *_: [({"instance_id": "i-1"}, 1.0)])
    monkeypatch.setattr(PrometheusSamples, "interval", lambda *_: timedelta(seconds=15))
    monkeypatch.setattr("app.scan_evidence.raw_metrics.find", lambda *_: [])
    monkeypatch.setattr("app.scan_evidence.signals.gather", lambda *_: {"i-1": evidence(BUSY_ENGINE, None)})
    monkeypatch.setattr("app.unmanaged_slices.read", refuse)
    store = PrometheusStore("http://user:secret@store")
    (found,), failed = with_evidence([result(ScanScope(Cloud.AWS, "1"), "i-1")], [store], WINDOWS, 15)
    assert [(one.verdict, one.slices) for one in found.instances] == [(Verdict.IN_USE, ())]
    assert list(map(str, failed.values())) == ["the use of slices cannot be read: http://store: too many samples"]


def test_evidence_about_a_name_that_two_instances_have_is_about_neither() -> None:
    store = FakeStore("s", {name: evidence(None, GPU) for name in ("worker", "other")})
    results = [result(ScanScope(Cloud.GCP, "a"), "worker", "other"), result(ScanScope(Cloud.GCP, "b"), "worker")]
    found, _ = with_evidence(results, [store], WINDOWS, 15)
    uses = [(one.account, one.instance.id, one.verdict) for each in found for one in each.instances]
    assert uses == [
        ("a", "worker", Verdict.UNKNOWN),
        ("a", "other", Verdict.IDLE),
        ("b", "worker", Verdict.UNKNOWN),
    ]
    assert store.asked == ["other"]


def test_the_password_of_a_store_is_not_shown() -> None:
    store = PrometheusStore("http://user:secret@127.0.0.1:1/prometheus")
    assert store.name == "http://127.0.0.1:1/prometheus"
    _, failed = with_evidence([result(ScanScope(Cloud.AWS, "1"), "i-1")], [store], WINDOWS, 15)
    ((scope, error),) = failed.items()
    assert scope.account == store.name and "secret" not in str(error) and "127.0.0.1:1" in str(error)
