"""An orphan on the embedded Compute Engine: a rule marks and stops it through the real adapters."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1
from pydantic import TypeAdapter

from app.unmanaged import SearchScope
from app.wiring import wire
from cli.output import Exit
from cli.watch_unmanaged import show_idle
from gpufleet.clouds.gcp.calls import ENDPOINT
from gpufleet.domain.decisions import Action, OutcomeKind, Reason
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.watchdogs import OrphanRule
from tests.fixtures.clouds.emulator import start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, ZONE, Google
from tests.fixtures.clouds.google_document import document as google_document
from tests.fixtures.watchdogs import recordings
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.fake_ports import FakeClock, FakeMetrics
from tests.fixtures.watchdogs.orphans import LONG_QUIET
from tests.fixtures.watchdogs.recordings import engine, exporter
from watchdogs.orphans.watchdog import OrphanWatchdog

pytestmark = pytest.mark.slow

LATER = datetime.now(UTC) + timedelta(hours=3)
"""At this time, all instances of the test are older than the rule's minimum age."""


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    cloud = start_cloud(tmp_path)
    try:
        found = Google(cloud=cloud)
        found.make_network()
        monkeypatch.setenv(ENDPOINT, cloud.places.google_url)
        yield found
    finally:
        stop_cloud(cloud)


def inserted(google: Google, name: str, **labels: str) -> None:
    """Create an on-demand instance outside of groups."""
    parts = google.template(name)["properties"]
    body: dict[str, Any] = {
        **parts,
        "name": name,
        "machine_type": f"zones/{ZONE}/machineTypes/g2-standard-8",
        "labels": labels,
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": True},
        "disks": [{**disk, "initialize_params": _in_zone(disk["initialize_params"])} for disk in parts["disks"]],
    }
    google.finish(
        google.instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=compute_v1.Instance(body))
    )


def _in_zone(parameters: dict[str, Any]) -> dict[str, Any]:
    kind = parameters.get("disk_type")
    return parameters if kind is None else {**parameters, "disk_type": f"zones/{ZONE}/diskTypes/{kind}"}


def fleet(folder: Path) -> FleetDocument:
    rule = {"name": "forgotten", "action": "stop", "tags": {"team": "research"}, "lose_local_disks": True}
    entry = TypeAdapter(OrphanRule).validate_python({**rule, "min_age": "1h", "grace": "1h"})
    ledger = f"sqlite:///{folder}/ledger.db"
    return google_document("pooled").model_copy(update={"ledger_url": ledger, "orphans": (entry,)})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")
def test_unmanaged_instances_are_judged_by_prometheus_data(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("notebook", "training", "unmeasured"):
        inserted(google, name, team="research")
    inserted(google, "salesbox", team="sales")
    monkeypatch.setattr(recordings, "START", LATER)
    recorded = {
        "notebook": [*engine(busy=False), *exporter(busy=False)],
        "training": [*engine(busy=False), *exporter(busy=True)],
    }
    with recordings.holding(recorded, tmp_path) as url:
        place = SearchScope(region=ZONE.rpartition("-")[0], project=PROJECT, tag="team=research", prometheus=url)
        code = show_idle(place, LATER, as_json=True)
    answer = json.loads(capfd.readouterr().out)
    assert {d["resource"]: d["reason_code"] for d in answer["decisions"]} == {
        "notebook": Reason.IDLE,
        "training": Reason.GPU_ACTIVE_WITHOUT_WORK,
        "unmeasured": Reason.METRICS_MISSING,
    }
    assert (code, answer["idle"]) == (Exit.FOUND, 1)
    assert (answer["unusable_metrics"], answer["slices"]["rows"], answer["slices"]["units"]) == ([], [], [])
    assert answer["api_calls"] == {
        "compute:instances.aggregated_list": 1,
        "prometheus:/api/v1/status/config": 1,
        "prometheus:/api/v1/query": 5,
    }


def test_a_rule_marks_and_stops_only_the_matching_instance(google: Google, tmp_path: Path) -> None:
    inserted(google, "notebook", team="research")
    inserted(google, "salesbox", team="sales")
    wired = wire(fleet(tmp_path), "orphans")
    fake = FakeFleet(now=LATER, evidence=dict.fromkeys(["notebook", "salesbox"], LONG_QUIET))
    ports = replace(wired.ports, clock=FakeClock(fake), metrics=FakeMetrics(fake))
    watchdog = OrphanWatchdog(wired.document, ports)
    found = [(d.resource, d.action, d.reason) for d in watchdog.dry().plan.decisions]
    assert sorted(found) == [
        ("notebook", Action.MARK, Reason.IDLE),
        ("salesbox", Action.KEEP, Reason.OUTSIDE_POOLS),
    ]
    assert wired.ledger.take_lease(fake.now) is None
    watchdog.apply()
    assert "gpu-fleet-idle-since" in dict(google.instance("notebook").labels)
    assert google.instance("notebook").status == "RUNNING"
    fake.now += timedelta(hours=2)
    assert wired.ledger.take_lease(fake.now) is None
    done = watchdog.apply()
    assert [(o.decision.resource, o.kind) for o in done.outcomes] == [("notebook", OutcomeKind.DONE)]
    wait_for("the stop", lambda: google.instance("notebook").status == "TERMINATED")
    assert dict(google.instance("notebook").labels) == {"team": "research"}, "a restart begins without a mark"
    assert google.instance("salesbox").status == "RUNNING"
    wired.engine.dispose()
