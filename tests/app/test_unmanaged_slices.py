"""GPU instances of no fleet: the cost and the use of each slice over the window in which they are judged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from app import unmanaged_slices
from gpufleet.costs import slice_use, slice_view
from gpufleet.costs.samples import RawSeries
from gpufleet.costs.slice_use import SliceUse, Use
from gpufleet.costs.slots import ActivitySample
from gpufleet.domain.model import Cloud
from tests.fixtures.costs.unit_series import gpu, mig, series_of
from tests.fixtures.watchdogs.orphans import orphan
from tests.fixtures.watchdogs.plain import START

HOUR = timedelta(hours=1)
NODE = replace(orphan(), machine_type="p4d.24xlarge")
TARGET = {"instance_id": NODE.id}
TENANTS = {1: "one", 2: "two", 3: "three"}


def rows(page: object, usd: str | None = "70") -> list[tuple[str, ...]]:
    series = series_of(page, START - HOUR, 3601, labels=TARGET)  # pyright: ignore[reportArgumentType]
    prices = {} if usd is None else {NODE.id: Decimal(usd)}
    found = unmanaged_slices.find([NODE], series, prices, HOUR, START)
    return [row[1:2] + row[3:] for row in slice_view.rows(found.costs)]


def test_each_tenant_of_a_foreign_node_has_the_cost_of_its_slice() -> None:
    def page(at: int) -> str:
        return mig(at, {1: 0.7, 2: 0.0, 3: 0.3}, pods=TENANTS, profile="2g.10gb")

    # one of eight GPUs reports: each slice is 2/7 of 1/8 of 70 USD/h
    assert rows(page) == [
        ("(not reported)", "61.25", "61.25", "0.00", "0.00", "0.00", "61.2500"),
        ("ns/one", "2.50", "2.50", "0.00", "0.00", "0.00", "2.5000"),
        ("ns/two", "2.50", "0.00", "2.50", "0.00", "0.00", "2.5000"),
        ("ns/three", "2.50", "2.50", "0.00", "0.00", "0.00", "2.5000"),
        ("(stranded 1/7 of a GPU: another slice may fit)", "1.25", "0.00", "0.00", "1.25", "0.00", "1.2500"),
        ("", "70.00", "66.25", "2.50", "1.25", "0.00", ""),
    ]


def test_tenants_of_a_shared_gpu_without_engine_metrics_are_inseparable() -> None:
    found = rows(lambda at: gpu(at, 0.4, {"one": "0", "two": "1"}))
    assert ("ns/one, ns/two (inseparable)", "8.75", "8.75", "0.00", "0.00", "0.00", "8.7500") in found


def test_without_a_price_the_cost_is_unknown() -> None:
    found = rows(lambda at: mig(at, {1: 0.7}, pods=TENANTS), usd=None)
    assert {row[-1] for row in found[:-1]} == {"?"}


@pytest.mark.parametrize("page", [lambda at: gpu(at, 0.4, {"": ""}), lambda _: ""], ids=["whole GPU", "no metrics"])
def test_instance_without_slices_has_no_rows(page: object) -> None:
    assert rows(page) == []


ONE_GPU = replace(NODE, machine_type="a2-ultragpu-1g", cloud=Cloud.GCP)
"""One A100 with 80 GB at 7 USD/h."""
Page = Callable[[int], str]
IN_USE, IDLE, UNKNOWN, STRANDED = Use.IN_USE, Use.IDLE, Use.UNKNOWN, Use.STRANDED


def uses(page: Page, more: Sequence[RawSeries] = ()) -> Sequence[SliceUse]:
    series = [*series_of(page, START - HOUR, 3601, labels=TARGET), *more]
    return unmanaged_slices.find([ONE_GPU], series, {NODE.id: Decimal(7)}, HOUR, START).uses


def three(at: int, third: str = "") -> str:
    """Tenant one works, two is idle, and the third slice has what the case says."""
    page = mig(at, {1: 0.7, 2: 0.0}, pods=TENANTS)
    if third == "gaps" and at % 600 < 300:
        return page
    if third == "late" and at < 1800:
        return page
    return page + (mig(at, {3: 0.0}, pods=TENANTS) if third else "")


def engine(pod: str, requests: Callable[[int], float]) -> RawSeries:
    """Requests of an engine in a pod."""
    labels = {"__name__": "gpufleet_engine_requests_running", "instance": f"{pod}:8000", **TARGET}
    samples = [ActivitySample(START - HOUR + timedelta(seconds=s), requests(s)) for s in range(0, 3601, 30)]
    return RawSeries({**labels, "namespace": "ns", "pod": pod, "container": "c"}, samples)


@pytest.mark.parametrize("third", ["gaps", "late"])
def test_mig_node_with_three_tenants_has_an_idle_a_busy_and_an_unknown_slice(third: str) -> None:
    found = [one for one in uses(lambda at: three(at, third)) if one.use is not STRANDED]
    assert [(one.slice, one.profile, dict(one.users), one.use, one.share, one.usd_per_hour) for one in found] == [
        ("2", "2g.20gb", {"ns/two": IDLE}, IDLE, "2/7", 2),
        ("3", "2g.20gb", {"ns/three": UNKNOWN}, UNKNOWN, "2/7", 2),
        ("1", "2g.20gb", {"ns/one": IN_USE}, IN_USE, "2/7", 2),
    ]


def shared(active: float) -> Page:
    return lambda at: gpu(at, active, {"one": "0", "two": "1"})


ONE_WORKS = (engine("one", lambda s: 3.0), engine("two", lambda _: 0.0))


@pytest.mark.parametrize(
    ("page", "engines", "use", "users"),
    [
        pytest.param(shared(0.5), ONE_WORKS, IN_USE, [IN_USE, IDLE], id="one of two engines works"),
        pytest.param(
            shared(0.0), [engine(pod, lambda _: 0.0) for pod in ("one", "two")], IDLE, [IDLE, IDLE], id="none works"
        ),
        pytest.param(shared(0.5), ONE_WORKS[:1], IN_USE, [IN_USE, UNKNOWN], id="the other has no engine metrics"),
        pytest.param(shared(0.5), (), IN_USE, [UNKNOWN, UNKNOWN], id="busy, but the user is unknown"),
        pytest.param(shared(0.0), (), UNKNOWN, [UNKNOWN, UNKNOWN], id="a number of all users proves no rest"),
    ],
)
def test_users_of_a_shared_gpu_are_judged_by_their_own_engines(
    page: Page, engines: Sequence[RawSeries], use: Use, users: Sequence[Use]
) -> None:
    (found,) = uses(page, engines)
    assert (found.use, list(found.users.values()), found.usd_per_hour) == (use, users, 7)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(lambda at: mig(at, {2: 0.0}), [("2", IDLE)], id="at rest"),
        pytest.param(lambda at: mig(at, {2: 0.0 if at else 0.9}), [("2", IN_USE)], id="worked once"),
        pytest.param(lambda at: mig(at, {2: 0.0}) if at >= 1800 else "", [("2", UNKNOWN), ("", UNKNOWN)], id="new"),
        pytest.param(lambda at: mig(at, {2: 0.0}, energy=5.0), [("2", UNKNOWN)], id="a frozen exporter"),
        pytest.param(lambda at: mig(at, {2: 0.0}, profile="8g.1gb"), [("2", IDLE), ("", UNKNOWN)], id="size unknown"),
    ],
)
def test_only_certain_evidence_makes_a_slice_idle(page: Page, expected: list[tuple[str, Use]]) -> None:
    found = [(one.slice, one.use) for one in uses(page) if one.use is not STRANDED]
    assert sorted(found, reverse=True) == expected


def test_nothing_is_known_about_a_name_that_two_instances_have() -> None:
    series = series_of(three, START - HOUR, 3601, labels=TARGET)
    twice = [ONE_GPU, replace(ONE_GPU, zone="us-east-1c")]
    found = unmanaged_slices.find(twice, series, {}, HOUR, START)
    assert (found.costs.nodes, found.uses) == (0, [])


def test_table_shows_idle_slices_first_with_what_they_cost_and_how_to_reclaim_them() -> None:
    found = uses(lambda at: three(at, "gaps"))
    assert slice_use.rows(found) == [
        (f"{NODE.id} GPU-1 2 2g.20gb", "ns/two", "idle", "2/7", "2.0000"),
        (f"{NODE.id} GPU-1", "(stranded 1/7 of a GPU: another slice may fit)", "stranded", "1/7", "1.0000"),
        (f"{NODE.id} GPU-1 3 2g.20gb", "ns/three", "unknown", "2/7", "2.0000"),
        (f"{NODE.id} GPU-1 1 2g.20gb", "ns/one", "in use", "2/7", "2.0000"),
    ]
    counts = "by slice: 1 idle (2.0000 USD/h), 1 stranded (1.0000 USD/h), 1 unknown, 1 in use"
    assert slice_use.notes(found) == [counts, slice_use.RECLAIM]
    assert slice_use.document(found)[0] == {
        "instance": NODE.id, "device": "GPU-1", "slice": "2", "profile": "2g.20gb", "share_of_device": "2/7",
        "use": "idle", "users": [{"name": "ns/two", "use": "idle"}], "usd_per_hour": "2.000000000",
    }  # fmt: skip
