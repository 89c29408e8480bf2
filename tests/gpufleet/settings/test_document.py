import json
from typing import Any

import pytest

from gpufleet.settings import document
from gpufleet.settings.document import DocumentError
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.documents import a_document


def test_a_rendered_document_reads_back_the_same() -> None:
    once = document.parse(json.dumps(a_document()), "fleet.json")
    assert document.parse(document.render(once), "again") == once


def test_newer_fields_are_written_only_if_they_differ_from_the_default() -> None:
    plain = document.parse(json.dumps(a_document()), "fleet.json")
    assert not plain.node_exporter
    assert "node_exporter" not in document.render(plain)
    wanted = document.parse(json.dumps({**a_document(), "node_exporter": True}), "fleet.json")
    assert document.parse(document.render(wanted), "again") == wanted


def test_a_served_name_is_written_only_if_it_is_set() -> None:
    whole = a_document()
    plain = document.parse(json.dumps(whole), "fleet.json")
    assert "served_name" not in document.render(plain)
    named = {**whole, "pools": [pool | {"served_name": f"{pool['name']}-name"} for pool in whole["pools"]]}
    found = document.parse(json.dumps(named), "fleet.json")
    assert document.parse(document.render(found), "again") == found


@pytest.mark.parametrize("with_ceilings", [False, True])
def test_earlier_releases_read_a_document_without_ceilings(with_ceilings: bool) -> None:
    whole = a_document()
    budget = {"usd_per_month": "9000", "usd_per_hour_at_max": "40"}
    spot: dict[str, Any] = {}
    if with_ceilings:
        budget |= {"stop_growth_at_usd_per_hour": "30", "unpriced": "stop"}
        spot = {"max_starts_per_hour": 4}
    whole |= {"budget": budget, "pools": [pool | {"watchdogs": {"spot": spot}} for pool in whole["pools"]]}
    found = document.parse(json.dumps(whole), "fleet.json")
    text = document.render(found)
    names = ("stop_growth_at_usd_per_hour", "unpriced", "max_starts_per_hour")
    assert [name in text for name in names] == [with_ceilings] * 3
    assert document.parse(text, "again") == found


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param({}, [], id="nothing: an earlier release reads it"),
        pytest.param({"stop_price": "30m"}, [], id="the default, written"),
        pytest.param({"stop_price": "2h"}, ["stop_price"], id="another price"),
        pytest.param({"stop_price": None}, ["stop_price"], id="no price"),
    ],
)
def test_a_stop_price_is_written_only_if_it_differs_from_the_default(
    written: dict[str, Any], expected: list[str]
) -> None:
    whole = a_document()
    whole |= {"pools": [pool | {"watchdogs": {"idle": written}} for pool in whole["pools"]]}
    found = document.parse(json.dumps(whole), "fleet.json")
    text = document.render(found)
    assert [name for name in ("stop_price",) if name in text] == expected
    assert document.parse(text, "again") == found


@pytest.mark.parametrize("value", ["-1m", "soon", 30], ids=str)
def test_a_stop_price_that_is_not_a_duration_is_refused(value: object) -> None:
    whole = a_document()
    whole |= {"pools": [pool | {"watchdogs": {"idle": {"stop_price": value}}} for pool in whole["pools"]]}
    with pytest.raises(document.DocumentError, match=r"watchdogs\.idle\.stop_price"):
        document.parse(json.dumps(whole), "fleet.json")


def _broken(path: str, value: object) -> dict[str, Any]:
    whole = a_document()
    *parents, last = path.split(".")
    place: Any = whole
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        pytest.param("version", 2, "version: is 2", id="a newer version"),
        pytest.param("version", None, "version: is None", id="no version"),
        pytest.param("cloud", "azure", "cloud:", id="unknown cloud"),
        pytest.param("pools.0.max", -1, "pools.0.max:", id="negative size"),
        pytest.param("pools.0.target", 9, "target 9 is outside 1 to 5", id="target above max"),
        pytest.param("pools.0.min", 6, "min 6 is above max 5", id="min above max"),
        pytest.param("pools.0.watchdogs.idle.window", "soon", "'soon' is not a duration", id="bad duration"),
        pytest.param("pools.0.watchdogs.idle.coverage", 90, "coverage:", id="per cent for a share"),
        pytest.param("pools.0.owned", "x", "pools.0.owned: is not a known setting", id="unknown field"),
        pytest.param("budget.usd_per_month", "NaN", "finite", id="NaN dollars"),
        pytest.param("budget.usd_per_month", True, "budget.usd_per_month", id="yes dollars"),
        pytest.param("generated_by.at", "2026-11-21T02:15:00", "generated_by.at:", id="a time without a zone"),
        pytest.param("pools", {}, "pools:", id="pools are not a list"),
    ],
)
def test_a_bad_field_is_named(path: str, value: object, message: str) -> None:
    with pytest.raises(DocumentError, match="s3://b/fleet.json") as caught:
        document.parse(json.dumps(_broken(path, value)), "s3://b/fleet.json")
    assert message in str(caught.value)


def test_names_of_pools_and_groups_are_unique() -> None:
    whole = a_document()
    whole["pools"] = whole["pools"] * 2
    with pytest.raises(DocumentError, match="pools named twice: chat"):
        document.parse(json.dumps(whole), "x")


def test_all_problems_are_reported_together() -> None:
    whole = _broken("cloud", "azure")
    whole["region"] = 5
    with pytest.raises(DocumentError) as caught:
        document.parse(json.dumps(whole), "x")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\x00", '{"version": 1', "[" * 100_000], ids=lambda t: repr(t[:12])
)
def test_an_invalid_document_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match=r"^there: "):
        document.parse(text, "there")


def test_the_committed_schema_matches_the_code() -> None:
    committed = json.loads((ROOT / "docs/fleet-document.schema.json").read_text())
    assert committed == document.json_schema(), "write gpufleet.settings.document.json_schema() there again"
