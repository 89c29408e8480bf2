"""`gpufleet init`: a settings file from a scan."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.errors import AppError
from app.settings_draft import Answers, draft
from cli.commands import build
from cli.settings import problems_of
from gpufleet.settings import KEY


def instance(**other: Any) -> dict[str, Any]:
    return {
        "cloud": "aws",
        "account": "222233334444",
        "region": "eu-west-1",
        "id": "i-1",
        "zone": "eu-west-1a",
        "machine_type": "g6.xlarge",
        "capacity_type": "on-demand",
        "owner": "ML Research",
        "usd_per_hour": "0.9",
        "spot_usd_per_hour": "0.3",
        "use": "in use",
    } | other


SCAN = {
    "instances": [
        instance(),
        instance(id="i-2", zone="eu-west-1b"),
        instance(id="i-3", use="idle"),
        instance(id="i-4", use="stopped", usd_per_hour=None),
        instance(id="i-5", owner=None, machine_type="g5.12xlarge", use="unknown", usd_per_hour="6.3"),
        instance(id="i-6", region="us-east-1", zone="us-east-1a", usd_per_hour="0.8"),
    ],
    "capacity": [
        {
            "cloud": "aws",
            "account": "222233334444",
            "region": "eu-west-1",
            "id": "cr-0123456789abcdef0",
            "kind": "capacity reservation",
            "place": "eu-west-1a",
            "machine_type": "g6.xlarge",
            "total": 1,
        }
    ],
}


def init(folder: Path, scan: Mapping[str, Any] | None, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fleet of the drafted file, and the answer."""
    source = folder / "scan.json"
    source.write_text(json.dumps(scan))
    out = folder / "Pulumi.aws-test.yaml"
    given = [] if scan is None else ["--from", str(source)]
    arguments = ["init", "--environment", "test", "--out", str(out), "--json", *given, *options]
    done = CliRunner().invoke(build("init"), arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert problems_of(out) == ()
    return yaml.safe_load(out.read_text())["config"][KEY], json.loads(done.stdout)


def test_instances_in_use_become_pools_of_a_valid_file(tmp_path: Path) -> None:
    fleet, answer = init(tmp_path, SCAN)
    pools = {pool["name"]: pool for pool in fleet["pools"]}
    assert {name: (pool["target"], pool["max"], pool["owner"]) for name, pool in pools.items()} == {
        "ml-research-g6": (2, 2, "ml-research"),
        "team-g5": (1, 1, "team"),
    }
    assert pools["ml-research-g6"]["capacity"]["spot"] == {
        "zones": ["eu-west-1a", "eu-west-1b"],
        "machine_types": ["g6.xlarge"],
    }
    (reserved,) = pools["ml-research-g6"]["capacity"]["reserved"]
    assert reserved.pop("review_by")
    assert reserved == {
        "zone": "eu-west-1a", "machine_type": "g6.xlarge", "count": 1, "existing": "cr-0123456789abcdef0",
    }  # fmt: skip
    assert fleet["account"] == "222233334444" and "111122223333" not in json.dumps(fleet)
    assert any("1 idle instance is not part of a pool" in line for line in answer["decide"])


def test_prices_come_from_the_scan_and_are_marked(tmp_path: Path) -> None:
    fleet, _ = init(tmp_path, SCAN)
    prices = {price["sku"]: price for price in fleet["prices"]}
    spot = prices["aws:ec2:g6.xlarge:spot"]
    assert (spot["usd_per_hour"], spot["source"], spot["unverified"]) == ("0.3", "scan", True)


def test_stated_region_takes_precedence_over_the_most_expensive_one(tmp_path: Path) -> None:
    fleet, _ = init(tmp_path, SCAN, "--region", "us-east-1", "--zone", "us-east-1c")
    assert [pool["target"] for pool in fleet["pools"]] == [1]
    assert fleet["zones"] == ["us-east-1a", "us-east-1c"]


def test_without_a_scan_answers_make_one_pool(tmp_path: Path) -> None:
    fleet, answer = init(
        tmp_path, None, "--machine-type", "g6e.xlarge", "--model", "hf://Qwen/Qwen3-8B", "--weights-gib", "15.3",
        "--owner", "search",
    )  # fmt: skip
    assert fleet["models"] == [{"name": "qwen3-8b", "source": "hf://Qwen/Qwen3-8B", "weights_gib": 15.3}]
    assert [(pool["model"], pool["owner"]) for pool in fleet["pools"]] == [("qwen3-8b", "search")]
    assert not any("models" in line for line in answer["decide"])


@pytest.mark.parametrize(
    ("scan", "options", "message"),
    [
        pytest.param(
            None, ["--machine-type", "g6.xlarg"], "--machine-type: no aws machine type 'g6.xlarg'", id="typo"
        ),
        pytest.param(None, [], "state --machine-type", id="nothing stated"),
        pytest.param({"a": 1}, [], "it has no list of instances", id="not a scan"),
        pytest.param(
            {"instances": []},
            [],
            "the scan has no GPU instances: leave --from out, and state --machine-type",
            id="an empty scan",
        ),
        pytest.param(
            SCAN,
            ["--cloud", "gcp"],
            "no GPU instances in gcp, only in aws 222233334444 eu-west-1",
            id="a scan of another cloud",
        ),
        pytest.param(
            SCAN,
            ["--region", "us-west-2"],
            "no GPU instances in us-west-2, only in aws",
            id="a scan of other regions",
        ),
    ],
)
def test_missing_answers_are_named(
    tmp_path: Path, scan: Mapping[str, Any] | None, options: list[str], message: str
) -> None:
    with pytest.raises(AppError, match=message):
        init(tmp_path, scan, *options)


@pytest.mark.parametrize(
    ("owner", "name", "team"),
    [
        pytest.param("222233334444-ml", "team-222233334444-g6", "team-222233334444-ml", id="begins with a digit"),
        pytest.param(
            "very long name of an owner", "very-long-name-of-g6", "very-long-name-of-an-own", id="longer than a name"
        ),
        pytest.param("***", "team-g6", "team", id="no letters"),
    ],
)
def test_any_owner_gives_a_valid_pool(tmp_path: Path, owner: str, name: str, team: str) -> None:
    fleet, _ = init(tmp_path, {"instances": [instance(owner=owner)]})
    assert [(pool["name"], pool["owner"]) for pool in fleet["pools"]] == [(name, team)]


def test_pools_of_one_long_owner_have_different_names(tmp_path: Path) -> None:
    types = ("g6.xlarge", "g6.2xlarge", "g6.4xlarge")
    fleet, _ = init(tmp_path, {"instances": [instance(owner="x" * 40, machine_type=one) for one in types]})
    names = [pool["name"] for pool in fleet["pools"]]
    assert names == [f"{'x' * 17}-g6", f"{'x' * 17}-2", f"{'x' * 17}-3"]


def test_an_account_that_the_scan_hides_is_left_to_decide() -> None:
    found = draft(Answers(environment="test"), {"instances": [instance(account="account-1")]}, datetime.now(UTC))
    assert any("hides the account as account-1 (--redact)" in line for line in found.decide)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    init(tmp_path, SCAN)
    with pytest.raises(AppError, match="exists: choose another --out"):
        init(tmp_path, SCAN)
    init(tmp_path, SCAN, "--force")
