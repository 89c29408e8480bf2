"""A fleet with a pool for each kind of accelerator on AWS: idle units are found, unknown ones kept, all are charged.

The exporters are simulated; nothing of this was tried on hardware. TPUs are in the test of Google Cloud's agent. No
machine type has an AMD Instinct GPU: their exporter is tested in `tests/localcloud/test_simulated_exporters.py`.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import httpx
import pytest

from gpufleet.domain.decisions import UNOBSERVED, Action, Reason
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.e2e.engine_fleet import EngineFleet, EnginePool, running
from tests.fixtures.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
NETWORK = free_network()
_DIGEST: Final = "@sha256:" + "3" * 64
ACCELERATORS: Final = {
    "neuron": {"exporter_image": f"gpu-fleet/neuron-monitor{_DIGEST}"},
}
TENANTS: Final = "3g.40gb,2g.20gb,1g.10gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pool of two instances. The first one is idle; the second one has faults that hide whether it is."""

    machine_type: str
    series: str
    """Shows its exporter's page."""
    divided: str = ""
    """How the devices of both instances are divided."""
    busy: str = ""
    """Activity of the second instance's units, with which it is kept as active."""
    hidden: tuple[tuple[str, str | None], ...]


CASES: Final = {
    "nvidia": Case(
        machine_type="p5.4xlarge",
        series="DCGM_FI_PROF_GR_ENGINE_ACTIVE{",
        divided=TENANTS,
        busy="0,0.4,0",
        hidden=(("slices", "shared:3"),),
    ),
    "neuron": Case(
        machine_type="inf2.xlarge", series="neuroncore_utilization_ratio{", busy="0,0.5",
        hidden=(("exporter-blank", None),),
    ),
}  # fmt: skip
POOLS: Final = tuple(
    EnginePool(
        name=name,
        kind="vllm",
        args=("--max-model-len", "2048"),
        machine_type=case.machine_type,
        spot_usd="1.25",
    )
    for name, case in CASES.items()
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineFleet]:
    with running(tmp_path_factory.mktemp("accelerators"), NETWORK, POOLS, accelerators=ACCELERATORS) as made:
        yield made


def test_idle_instances_are_found_unknown_ones_kept_and_all_charged(fleet: EngineFleet) -> None:
    """One scenario: each part needs the state that the part before it leaves."""
    fleet.run("watch", "cost", codes=(0, 1))
    idle = {name: fleet.instances(name)[0] for name in CASES}
    kept = {name: fleet.instances(name)[1] for name in CASES}
    for name, case in CASES.items():
        for instance in (idle[name], kept[name]):
            url = f"http://{instance['address']}:9400/metrics"
            wait_for(f"metrics of {name}: {url}", lambda url=url, series=case.series: series in _page(url), 120)
            if case.divided:
                _set(fleet, instance, "slices", case.divided)
        _set(fleet, kept[name], "gpu-active", case.busy)
    _decisions(fleet)  # a policy acts only after an operator has seen its dry run
    _active_units_keep_their_instance(fleet, kept)
    for name, case in CASES.items():
        fleet.cloud.clear_faults(kept[name]["id"])
        for fault, value in case.hidden:
            _set(fleet, kept[name], fault, value)
    _idle_ones_are_terminated_and_unknown_ones_kept(fleet, idle, kept)
    fleet.run("watch", "cost", codes=(0, 1))
    rows = fleet.run("report", "cost", "--since", "1h")["by"]["pool"]
    assert all(Decimal(rows[name]["usd"]) > 0 for name in CASES), rows


def _page(url: str) -> str:
    try:
        return httpx.get(url, timeout=60).text
    except httpx.HTTPError:
        return ""


def _set(fleet: EngineFleet, instance: dict[str, Any], fault: str, value: str | None) -> None:
    fleet.cloud.control("fault", {"instance": instance["id"], "what": fault, "value": value})


def _decisions(fleet: EngineFleet, *options: str) -> dict[str, dict[str, Any]]:
    """The decisions of the idle watchdog by instance."""
    found = fleet.run("watch", "idle", *options, codes=(0, 3))["decisions"]
    return {one["resource"]: one for one in found}


def _active_units_keep_their_instance(fleet: EngineFleet, kept: dict[str, dict[str, Any]]) -> None:
    """One tenant of three and one core work: their instances are not idle, whatever their engines report."""

    def active() -> bool:
        found = _decisions(fleet)
        return all(
            found[one["id"]]["reason_code"] in (Reason.GPU_ACTIVE, Reason.GPU_ACTIVE_WITHOUT_WORK)
            for one in kept.values()
        )

    wait_for("activity of each kind", active, 120)


def _idle_ones_are_terminated_and_unknown_ones_kept(
    fleet: EngineFleet, idle: dict[str, dict[str, Any]], kept: dict[str, dict[str, Any]]
) -> None:
    reasons: dict[str, str] = {}

    def terminated() -> bool:
        found = _decisions(fleet, "--apply")
        for name, instance in kept.items():
            assert found[instance["id"]]["action"] == Action.KEEP, found[instance["id"]]
            reasons[name] = found[instance["id"]]["reason_code"]
        return all(fleet.cloud.is_terminated(instance["id"]) for instance in idle.values())

    wait_for("the end of the idle instances", terminated, 300)
    assert reasons == {name: reason for name, reason in reasons.items() if reason in UNOBSERVED}
    assert not any(fleet.cloud.is_terminated(instance["id"]) for instance in kept.values())
    for instance in idle.values():
        history = fleet.run("watch", "why", instance["id"])
        assert Reason.STILL_IDLE in {row["reason_code"] for row in history}, history
