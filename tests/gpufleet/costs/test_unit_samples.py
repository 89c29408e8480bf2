"""The activity of slices and shared devices, from exporters' pages with the product's relabelling."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st

from app.unit_names import UNIT_NAMES
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slots import ActivitySample, Measure
from gpufleet.costs.unit_samples import unit_activity
from gpufleet.ledger.units import UnitHour
from serving.accelerators import CONTRACTS
from serving.accelerators.evidence import ProvedActivity, TimedReading, judge
from serving.accelerators.reading import read as read_page
from serving.exposition import parse
from tests.fixtures.costs.metric_names import NAMES
from tests.fixtures.costs.unit_series import gpu, mig, series_of

T0 = datetime(2026, 11, 21, 8, tzinfo=UTC)
MINUTES = 600
"""Seconds of each story: 60 slots, the last sample after 570 seconds."""
SEEN = (1 << 57) - 1


def slots(first: int, end: int) -> int:
    return (1 << end) - (1 << first)


def hours(series: Sequence[RawSeries], measure: Measure = Measure(), **more: object) -> list[UnitHour]:
    names = replace(NAMES, **more)  # pyright: ignore[reportArgumentType]
    return unit_activity("e", names, UNIT_NAMES, series, measure)


def read(page: Callable[[int], str], *more: RawSeries) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Slice, tenant and engine to the slots: seen, busy, idle, engine busy, engine idle."""
    found = hours([*series_of(page, T0, MINUTES), *more])
    return {(row.slice, row.tenant, row.engine): row[9:] for row in found}


PODS = {1: "one", 2: "two", 3: ""}


def test_each_slice_has_its_own_activity_profile_and_tenant() -> None:
    found = hours(series_of(lambda at: mig(at, {1: 0.7, 2: 0.0, 3: 0.0}, pods=PODS), T0, MINUTES))
    assert {(row.device, row.profile, row.hour) for row in found} == {("GPU-1", "2g.20gb", T0)}
    assert {(row.slice, row.tenant): row[9:12] for row in found} == {
        ("1", "ns/one"): (SEEN, SEEN, 0),
        ("2", "ns/two"): (SEEN, 0, SEEN),
        ("3", ""): (SEEN, 0, SEEN),
    }


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(lambda at: mig(at, {1: 0.0}, energy=5e6), id="an exporter that repeats old numbers"),
        pytest.param(lambda at: mig(at, {1: 870.0 if at == 300 else 0.0}), id="one activity with another unit"),
        pytest.param(
            lambda at: mig(at, {1: 0.0 if at % 60 else float("nan")}), id="each second page is not measured"
        ),
        pytest.param(lambda at: mig(at, {1: 37.0}), id="activity in another unit"),
        pytest.param(
            lambda at: mig(at, {1: 0.0}).replace("PROF_GR_ENGINE_ACTIVE", "DEV_GPU_UTIL"),
            id="utilization, which misses short kernels",
        ),
        pytest.param(lambda at: mig(at, {1: 0.0 if at % 120 == 0 else float("nan")}), id="numbers too far apart"),
        pytest.param(lambda at: mig(at, {1: 2147483647}), id="the value for no measurement"),
    ],
)
def test_slice_without_proof_is_neither_busy_nor_idle(page: Callable[[int], str]) -> None:
    ((seen, busy, idle, *_),) = read(page).values()
    assert (seen, busy, idle) == (SEEN, 0, 0)


def test_copies_of_a_series_are_one_number() -> None:
    """A second exporter, a second store and one series per job."""
    series = series_of(lambda at: mig(at, {1: 0.0, 2: 0.5}), T0, MINUTES)
    copies = [
        replace(one, labels={**one.labels, **more})
        for one in series
        for more in (
            {"Hostname": "other"},
            {"exported_instance": "10.0.0.1:9400", "instance": "store"},
            {"hpc_job": "7"},
        )
    ]
    assert hours([*series, *copies]) == hours(series)


def test_gpu_that_is_divided_in_another_way_has_other_slices_afterwards() -> None:
    def page(at: int) -> str:
        return mig(at, {1: 0.5, 2: 0.5}) if at < 300 else mig(at, {1: 0.0}, profile="3g.40gb")

    found = hours(series_of(page, T0, MINUTES))
    assert {(row.slice, row.profile): (row.seen, row.busy, row.idle) for row in found} == {
        ("1", "2g.20gb"): (slots(0, 27), slots(0, 27), 0),
        ("2", "2g.20gb"): (slots(0, 27), slots(0, 27), 0),
        ("1", "3g.40gb"): (slots(30, 57), 0, slots(30, 57)),
    }


def running(pod: str, port: int, value: float, **labels: str) -> RawSeries:
    """The gauge of running requests of an engine."""
    own = {"__name__": "running", "instance_id": "i-1", "instance": f"10.0.0.1:{port}", "model_name": f"m-{port}"}
    samples = [ActivitySample(T0 + timedelta(seconds=at), value) for at in range(0, MINUTES, 30)]
    return RawSeries({**own, **({"namespace": "ns", "pod": pod} if pod else {}), **labels}, samples)


def test_shared_gpu_has_one_row_per_tenant_and_its_zero_proves_nothing() -> None:
    found = read(lambda at: gpu(at, 0.0, {"": "", "one": "0", "two": "1"}))
    assert found == {("", "ns/one", ""): (SEEN, 0, 0, 0, 0), ("", "ns/two", ""): (SEEN, 0, 0, 0, 0)}


def test_engines_are_matched_to_tenants_by_labels() -> None:
    found = read(lambda at: gpu(at, 0.6, {"one": "0", "two": "1"}), running("one", 8000, 1), running("two", 8001, 0))
    assert found == {
        ("", "ns/one", "8000"): (SEEN, SEEN, 0, SEEN, 0),
        ("", "ns/two", "8001"): (SEEN, SEEN, 0, 0, SEEN),
    }


def test_engines_of_one_undivided_device_are_matched_by_their_ports() -> None:
    found = read(lambda at: gpu(at, 0.6, {"": ""}), running("", 8000, 0), running("", 8001, 3))
    assert found == {("", "", "8000"): (SEEN, SEEN, 0, 0, SEEN), ("", "", "8001"): (SEEN, SEEN, 0, SEEN, 0)}


def test_engine_that_names_its_slice_is_matched_to_it() -> None:
    mine = {"accelerator_device": "GPU-1", "accelerator_slice": "2"}
    found = read(lambda at: mig(at, {1: 0.0, 2: 0.0}), running("", 8000, 2, **mine))
    assert found == {("1", "", ""): (SEEN, 0, SEEN, 0, 0), ("2", "", "8000"): (SEEN, 0, SEEN, SEEN, 0)}


def test_engines_without_labels_are_not_matched_to_slices() -> None:
    found = read(lambda at: mig(at, {1: 0.5, 2: 0.5}), running("", 8000, 2), running("", 8001, 2))
    assert set(found) == {("1", "", ""), ("2", "", "")}


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(series_of(lambda at: gpu(at, 0.4, {"": ""}), T0, MINUTES), id="one whole GPU"),
        pytest.param(series_of(lambda at: gpu(at, 0.4, {"one": ""}), T0, MINUTES), id="one whole GPU of one pod"),
        pytest.param(
            [
                *series_of(lambda at: gpu(at, 0.4, {"one": ""}), T0, MINUTES),
                *series_of(lambda at: gpu(at, 0.4, {"two": ""}, "GPU-2"), T0, MINUTES),
            ],
            id="two GPUs of two pods",
        ),
        pytest.param([], id="nothing"),
    ],
)
def test_instances_without_shared_devices_have_no_rows(series: list[RawSeries]) -> None:
    assert hours([*series, running("", 8000, 1)]) == []


def neuron(at: int, cores: dict[int, float], executions: int) -> str:
    lines = [f'neuroncore_utilization_ratio{{neuroncore="{core}"}} {value}' for core, value in cores.items()]
    lines.append(f'execution_status_total{{status_type="completed"}} {executions}')
    lines.append(f"system_memory_used_bytes {at + 1e9}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("executions", "expected"),
    [
        pytest.param(lambda at: at, {"0": (SEEN, SEEN, 0), "1": (SEEN, 0, 0)}, id="executions of the host"),
        pytest.param(lambda _: 7, {"0": (SEEN, 0, 0), "1": (SEEN, 0, SEEN)}, id="a value that stays after the end"),
    ],
)
def test_neuron_cores_work_if_the_host_executes_and_the_core_is_active(
    executions: Callable[[int], int], expected: dict[str, tuple[int, ...]]
) -> None:
    found = hours(series_of(lambda at: neuron(at, {0: 0.5, 1: 0.0}, executions(at)), T0, MINUTES))
    assert {row.slice: row[9:12] for row in found} == expected


NEURON_HOST = (
    'availability_zone="us-east-2a",instance_id="i-0823d657f57057590",instance_name="",instance_type="inf1.xlarge",'
    'region="us-east-2",subnet_id="subnet-0"'
)
"""The labels of a recorded page of neuron-monitor's script (inf1.xlarge, one runtime)."""


def two_runtimes(at: int, ended: int, alive: int) -> str:
    """The recorded page with a second runtime. `ended`, `alive`: executions of the runtimes 15439 and 20001."""
    shares = {("15439", 0): 0.8633101879976985, ("15439", 1): 0.0, ("20001", 2): 0.42, ("20001", 3): 0.0}
    lines = [f"system_memory_used_bytes{{{NEURON_HOST}}} {6.98e9 + 4096 * at}"]
    lines += [
        f'neuroncore_utilization_ratio{{{NEURON_HOST},neuroncore="{core}",runtime_tag="{tag}"}} {share}'
        for (tag, core), share in shares.items()
    ]
    lines += [
        f'execution_status_total{{{NEURON_HOST},runtime_tag="{tag}",status_type="completed"}} {count}'
        for tag, count in (("15439", ended), ("20001", alive))
    ]
    return "\n".join(lines) + "\n"


def test_last_value_of_an_ended_neuron_runtime_is_unknown_while_another_one_works() -> None:
    found = hours(series_of(lambda at: two_runtimes(at, 2977, 10 * at), T0, MINUTES))
    assert {row.slice: row[9:12] for row in found} == {
        "0": (SEEN, 0, 0),
        "1": (SEEN, 0, 0),
        "2": (SEEN, SEEN, 0),
        "3": (SEEN, 0, 0),
    }


def test_last_value_of_an_ended_neuron_runtime_is_unknown_while_none_works() -> None:
    found = hours(series_of(lambda at: two_runtimes(at, 2977, 51), T0, MINUTES))
    assert {row.slice: row[9:12] for row in found} == {
        "0": (SEEN, 0, 0),
        "1": (SEEN, 0, SEEN),
        "2": (SEEN, 0, 0),
        "3": (SEEN, 0, SEEN),
    }


def test_partitions_of_amd_gpus_that_report_zero_are_not_idle() -> None:
    def page(_: int) -> str:
        labels = 'serial_number="S1",gpu_id="{}",gpu_partition_id="{}",gpu_compute_partition_type="cpx"'
        return "".join(f"gpu_gfx_activity{{{labels.format(n, n)}}} {50 * (n == 0)}\n" for n in range(2))

    found = hours(series_of(page, T0, MINUTES))
    assert {(row.device, row.slice, row.profile): (row.busy, row.idle) for row in found} == {
        ("S1", "0/0", "cpx"): (SEEN, 0),
        ("S1", "1/1", "cpx"): (0, 0),
    }


# the proofs are not weaker than those of the reference

VALUES = st.sampled_from([0.0, 0.0, 0.0, 0.004, 0.3, float("nan"), 40.0, 2147483647.0])
PAGES = 8
EACH_PAGE = Measure(reach=timedelta(seconds=30))
"""Bridges no missing page, as the reference: by default, costs bridge gaps of up to 75 seconds."""
ALL_PAGES = slots(0, 3 * (PAGES - 1))


@st.composite
def windows(draw: st.DrawFn) -> list[str]:
    """Pages of an exporter with one or two slices: activity, energy that may stand still, missing series."""
    quiet = draw(st.booleans())
    value = st.just(0.0) if quiet else VALUES
    still = draw(st.integers(0, 3)) == 0
    pods = draw(st.sampled_from([None, {1: "a", 2: "b"}]))
    found: list[str] = []
    for number in range(PAGES):
        active = {part: draw(value) for part in (1, 2) if quiet or draw(st.integers(0, 20))}
        found.append(mig(30 * number, active, pods=pods, energy=5e6 if still else None))
    return found


@given(windows())
@example([mig(30 * number, {1: 0.0} if number in (0, 2, 4, 6, 7) else {}) for number in range(PAGES)])
@settings(max_examples=60, deadline=None)
def test_slice_is_idle_only_if_the_reference_finds_it_idle(window: list[str]) -> None:
    found = hours(series_of(lambda at: window[at // 30], T0, 30 * PAGES), EACH_PAGE)
    readings = [
        TimedReading(at=timedelta(seconds=30 * number), reading=read_page(CONTRACTS["nvidia"], parse(page)))
        for number, page in enumerate(window)
    ]
    judged = {key.slice: one.activity for key, one in judge(CONTRACTS["nvidia"], readings, 0.01).items()}
    for row in found:
        if row.idle & ALL_PAGES == ALL_PAGES:
            assert judged[row.slice] is ProvedActivity.IDLE
        if row.busy:
            assert judged[row.slice] is ProvedActivity.WORKING


@pytest.mark.parametrize("idle", [True, False], ids=["idle all the time", "busy"])
def test_generated_windows_are_not_trivial(idle: bool) -> None:
    def is_wanted(window: list[str]) -> bool:
        found = hours(series_of(lambda at: window[at // 30], T0, 30 * PAGES), EACH_PAGE)
        return any(row.idle & ALL_PAGES == ALL_PAGES if idle else row.busy for row in found)

    find(windows(), is_wanted, settings=settings(max_examples=500, database=None, phases=[Phase.generate]))


@pytest.mark.parametrize(
    ("clock", "busy", "idle"),
    [
        pytest.param(lambda at: 4000 + at, 0, SEEN, id="runs"),
        pytest.param(lambda _at: 4000, 0, 0, id="stands still"),
        pytest.param(lambda at: 1000 * (4000 + at), 0, 0, id="in milliseconds"),
        pytest.param(
            lambda at: 4000 + at if at < 300 else at - 300, slots(30, 31), SEEN & ~slots(30, 31), id="falls"
        ),
    ],
)
def test_a_shared_tpu_is_idle_only_by_a_clock_that_runs(clock: Callable[[int], float], busy: int, idle: int) -> None:
    def page(at: int) -> str:
        return (
            'tpu_runtime_tensorcore_dutycycle_percent{chip="0"} 0\n'
            f'tpu_runtime_tensorcore_idle_duration_seconds{{chip="0"}} {clock(at)}\n'
        )

    found = hours([*series_of(page, T0, MINUTES), running("", 8000, 0), running("", 8001, 0)])
    assert {(row.busy, row.idle) for row in found} == {(busy, idle)}


@pytest.mark.parametrize(
    ("shares", "limit", "idle"),
    [
        pytest.param({1: 0.0, 2: 0.0}, 110.0, {"1": 0, "2": 0}, id="all slices read 0 and the device draws 120 W"),
        pytest.param({1: 0.0, 2: 0.0}, 280.0, {"1": SEEN, "2": SEEN}, id="an idle device may draw so much"),
        pytest.param({1: 0.0, 2: 0.5}, 110.0, {"1": SEEN, "2": 0}, id="another slice works"),
    ],
)
def test_slices_are_not_idle_while_their_device_draws_the_power_of_work(
    shares: dict[int, float], limit: float, idle: dict[str, int]
) -> None:
    series = series_of(lambda at: mig(at, shares), T0, MINUTES)
    found = unit_activity("e", NAMES, UNIT_NAMES, series, Measure(), working_watts={"i-1": limit})
    assert {row.slice: row.idle for row in found} == idle
