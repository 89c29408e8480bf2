"""`gpufleet watch orphans` shows which slices of the listed instances are idle, busy or unknown."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer

from app import unmanaged_slices
from app.passes import PassResult
from cli import watch_orphans
from cli.output import STDERR, STDOUT
from gpufleet.costs import slice_use
from gpufleet.costs.samples import RawSeries
from gpufleet.domain.activity import CloudError
from gpufleet.settings.document import render
from tests.fixtures.costs.unit_series import mig, series_of
from tests.fixtures.watchdogs.orphans import make_watchdog, orphan, orphan_fleet
from tests.fixtures.watchdogs.plain import START, document

NODE = replace(orphan(1), machine_type="p4d.24xlarge")
USES = {"ns/one": "in use", "ns/two": "idle", "ns/three": "unknown"}


def samples(*_: object) -> list[RawSeries]:
    """Tenant one works, two is idle, and tenant three is not always reported."""

    def page(at: int) -> str:
        third = mig(at, {3: 0.0}, pods={3: "three"}, profile="2g.10gb") if at % 600 < 300 else ""
        return mig(at, {1: 0.7, 2: 0.0}, pods={1: "one", 2: "two"}, profile="2g.10gb") + third

    window = timedelta(minutes=30)
    return series_of(page, START - window, 1801, labels={"instance_id": NODE.id})


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fleet whose account has one MIG node of no pool, at 70 USD per hour."""
    path = tmp_path / "fleet.json"
    path.write_text(render(document()), "utf-8")
    fake = orphan_fleet()
    fake.instances[NODE.id] = NODE
    done = make_watchdog(fake).dry()
    done = replace(done, observed=replace(done.observed, usd_per_hour={NODE.id: Decimal(70)}))
    result = PassResult(environment="test", watchdog="orphans", applied=False, done=done)
    monkeypatch.setattr(watch_orphans, "one_of_several", lambda *_, **__: result)
    monkeypatch.setattr(unmanaged_slices, "read", samples)
    return str(path)


def listed(fleet: str, capfd: pytest.CaptureFixture[str], *, apply: bool = False) -> dict[str, Any]:
    with pytest.raises(typer.Exit):
        watch_orphans.orphans([fleet], as_json=True, apply=apply)
    (answer,) = json.loads(capfd.readouterr().out)
    return answer


def test_slices_of_a_listed_node_are_idle_in_use_or_unknown(fleet: str, capfd: pytest.CaptureFixture[str]) -> None:
    slices: Sequence[dict[str, Any]] = listed(fleet, capfd)["slices"]
    found = {user["name"]: one["use"] for one in slices for user in one["users"]}
    assert found == USES
    # one of eight GPUs reports: a slice costs 2/7 of 1/8
    assert {one["usd_per_hour"] for one in slices if one["users"]} == {"2.500000000"}
    assert "slices" not in listed(fleet, capfd, apply=True), "a pass that acts reads no samples of slices"


def test_text_shows_what_an_idle_slice_costs_and_how_to_reclaim_it(fleet: str) -> None:
    with STDOUT.capture() as captured, pytest.raises(typer.Exit):
        watch_orphans.orphans([fleet])
    lines = captured.get().splitlines()
    (idle,) = [line.split() for line in lines if "ns/two" in line]
    assert idle == [NODE.id, "GPU-1", "2", "2g.10gb", "ns/two", "idle", "2/7", "2.5000"]
    assert lines[-2:-1] == [slice_use.RECLAIM]


def test_slices_are_unknown_if_the_store_does_not_answer(
    fleet: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[RawSeries]:
        raise CloudError("no answer")

    monkeypatch.setattr(unmanaged_slices, "read", refuse)
    with STDERR.capture() as captured:
        assert listed(fleet, capfd)["slices"] is None
    assert "the use of slices cannot be read: no answer" in captured.get()
