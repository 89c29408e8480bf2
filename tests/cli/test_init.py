"""`gpufleet init`: a settings file from a scan."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.errors import AppError, ErrorCode
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
            "the scan has no GPU instances: omit --from, and state --machine-type",
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


def refusal(folder: Path, *options: str) -> AppError:
    """The error of a command that writes nothing."""
    before = sorted(folder.iterdir())
    done = CliRunner().invoke(build("init"), ["init", *options])
    assert isinstance(done.exception, AppError), done
    assert sorted(folder.iterdir()) == before
    return done.exception


@pytest.mark.parametrize(
    ("scan", "message"),
    [
        pytest.param({"instances": [{}]}, "instances.0.cloud is missing", id="nothing"),
        pytest.param({"instances": [None]}, "instances.0 must be an object; got null", id="null"),
        pytest.param(
            {"instances": [instance(cloud="azure")]},
            'instances.0.cloud must be aws or gcp; got "azure"',
            id="another cloud",
        ),
        pytest.param(
            {"instances": [instance(), instance(usd_per_hour="abc")]},
            'instances.1.usd_per_hour must be an amount in USD as text, or null; got "abc"',
            id="no amount",
        ),
        pytest.param({"instances": [instance(usd_per_hour="NaN")]}, 'or null; got "NaN"', id="not a number"),
        pytest.param({"instances": [instance(usd_per_hour="1e999999")]}, 'or null; got "1e999999"', id="too much"),
        pytest.param({"instances": [instance(spot_usd_per_hour=0.3)]}, "or null; got 0.3", id="a number as price"),
        pytest.param(
            {"instances": [instance(owner=7)]}, "instances.0.owner must be a text or null; got 7", id="owner"
        ),
        pytest.param({"instances": [instance(zone=None)]}, "instances.0.zone must be a text; got null", id="zone"),
        pytest.param(
            {"instances": [instance(capacity_type="weird")]},
            'instances.0.capacity_type must be reserved or spot or on-demand or flex-start; got "weird"',
            id="capacity type",
        ),
        pytest.param(
            {"instances": [instance()], "capacity": None}, "capacity must be a list; got null", id="no capacity"
        ),
        pytest.param(
            {"instances": [instance()], "capacity": [{}]}, "capacity.0.cloud is missing", id="empty capacity"
        ),
        pytest.param(
            {"instances": [instance()], "capacity": [{**SCAN["capacity"][0], "total": "4"}]},
            'capacity.0.total must be a whole number; got "4"',
            id="number of a reservation",
        ),
        pytest.param({"instances": ["x" * 500]}, 'instances.0 must be an object; got "xxx', id="long value"),
    ],
)
def test_a_file_with_a_foreign_document_is_refused_with_the_place_and_the_value(
    tmp_path: Path, scan: Mapping[str, Any], message: str
) -> None:
    source = tmp_path / "scan.json"
    source.write_text(json.dumps(scan))
    error = refusal(tmp_path, "--from", str(source), "--out", str(tmp_path / "out.yaml"))
    assert error.code is ErrorCode.WRONG_USE and len(str(error)) < 250
    assert str(error).startswith("--from: expected the output of `gpufleet scan --json`: ") and message in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ["--account", "a: b"], "--account: expected an AWS account id of 12 digits; got 'a: b'", id="YAML"
        ),
        pytest.param(["--account", "{"], "--account: expected an AWS account id", id="half a map"),
        pytest.param(["--account", '"x'], "--account: expected an AWS account id", id="half a text"),
        pytest.param(["--region", "["], "--region: '[' is not a known region of aws", id="half a list"),
        pytest.param(["--region", "us-est-1"], "did you mean us-west-1 or us-east-1", id="typo"),
        pytest.param(
            ["--cloud", "gcp", "--account", "Acme Research"],
            "--account: expected the id of a Google Cloud project, as `gcloud projects list` shows it",
            id="project",
        ),
        pytest.param(["--environment", "../../evil"], "--environment: expected at most 16 lowercase", id="a path"),
        pytest.param(["--environment", ""], "--environment: expected at most 16 lowercase", id="no environment"),
        pytest.param(
            ["--machine-type", "g5.xlarge"], "--machine-type: expected one, for the one pool", id="second type"
        ),
        pytest.param(["--weights-gib", "5"], "--weights-gib: name the model, too", id="weights without a model"),
    ],
)
def test_names_that_cannot_exist_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    types = ["--machine-type", "g2-standard-8" if "gcp" in options else "g6.xlarge"]
    error = refusal(tmp_path, *types, *options, "--out", str(tmp_path / "out.yaml"))
    assert error.code is ErrorCode.WRONG_USE and message in str(error)


def test_a_machine_type_next_to_a_scan_with_instances_in_use_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "scan.json"
    source.write_text(json.dumps(SCAN))
    error = refusal(
        tmp_path, "--from", str(source), "--machine-type", "g5.xlarge", "--out", str(tmp_path / "out.yaml")
    )
    assert str(error).endswith("omit --machine-type or --from")
    idle = {"instances": [instance(use="idle")]}
    fleet, _ = init(tmp_path, idle, "--machine-type", "g6.xlarge")
    assert [pool["name"] for pool in fleet["pools"]] == ["chat"], "nothing is in use: the type is that of the pool"


@pytest.mark.parametrize("out", ["", ".", "/"])
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_a_folder_is_refused_as_the_file_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, force: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(tmp_path, "--machine-type", "g6.xlarge", "--out", out, *force)
    assert str(error) == f"--out: {out or '.'} is a folder; name a file in it"


def test_a_pool_holds_all_instances_of_its_reservations(tmp_path: Path) -> None:
    held = {**SCAN["capacity"][0], "total": 4}
    fleet, _ = init(tmp_path, {"instances": [instance()], "capacity": [held]})
    (pool,) = fleet["pools"]
    assert (pool["target"], pool["max"]) == (1, 4)


def test_a_reservation_belongs_to_one_pool(tmp_path: Path) -> None:
    instances = [instance(owner="ml"), instance(owner="web", id="i-2")]
    fleet, _ = init(tmp_path, {"instances": instances, "capacity": SCAN["capacity"]})
    assert ["reserved" in pool["capacity"] for pool in fleet["pools"]] == [True, False]


def test_an_owner_means_the_same_with_and_without_a_scan(tmp_path: Path) -> None:
    owners: list[str] = []
    for scan, types in ((SCAN, []), (None, ["--machine-type", "g6.xlarge"])):
        fleet, _ = init(tmp_path, scan, *types, "--owner", "Ünïcode Team", "--force")
        owners.append(fleet["pools"][0]["owner"])
    assert owners == ["unicode-team", "unicode-team"]


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
