"""What a metrics store of the user shows about instances of a scan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from app.scan import failure_of
from app.scan_evidence import PrometheusStore, verdict_of, with_evidence
from gpufleet.clouds.progress import Touch
from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.scan.judge import ScanWindows, UseVerdict, combine
from gpufleet.scan.model import FailureCode, ScannedInstance, ScanScope, ScopeResult, Verdict, VerdictReason
from tests.fixtures.watchdogs.orphans import orphan
from tests.fixtures.watchdogs.plain import QUIET_ENGINE, QUIET_GPU, START

WINDOWS = ScanWindows(now=START)
DAY = timedelta(days=1)
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
    unusable: str = ""
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
    store = FakeStore("http://raw", {"i-1": evidence(BUSY_ENGINE, None)}, unusable="job 'dcgm': not relabelled")
    found, failed = with_evidence([result(ScanScope(Cloud.AWS, "1"), "i-1")], [store], WINDOWS, 15)
    assert [one.verdict for one in found[0].instances] == [Verdict.IN_USE]
    ((scope, error),) = failed.items()
    failure = failure_of(scope, "metrics", error)
    assert (failure.code, failure.message) == (FailureCode.NOT_USABLE, "job 'dcgm': not relabelled")


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
