"""`gpufleet import`: what it shows and writes, and what it refuses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.errors import AppError
from cli import import_group
from cli.commands import build
from cli.settings import problems_of
from gpufleet.domain.existing_group import ExistingGroup
from gpufleet.settings import KEY
from tests.fixtures.stacks.settings_files import AWS, GCP, changed

SUBNETS = {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b", "us-east-1c": "subnet-c"}
GROUP = ExistingGroup(
    name="inference",
    min=0,
    max=1,
    desired=0,
    zones=("us-east-1a",),
    subnets=("subnet-a",),
    networks=frozenset({"vpc-1"}),
    template="lt-1, version 7",
    distribution=None,
    machine_types=("g6.xlarge",),
)


class Cloud:
    """The cloud's answers about `GROUP`."""

    def __init__(self, account: str, group: ExistingGroup) -> None:
        self._account, self._group = account, group

    def account(self) -> str:
        return self._account

    def read(self, name: str) -> ExistingGroup:
        assert name == self._group.name
        return self._group

    def of_pool(self, environment: str, pool: str) -> Mapping[str, ExistingGroup]:
        return {}


def answers(monkeypatch: pytest.MonkeyPatch, group: ExistingGroup = GROUP, account: str = "") -> None:
    cloud = Cloud(account or AWS[KEY]["account"], group)
    monkeypatch.setattr(import_group, "AwsExistingGroups", lambda _: cloud)


def written(folder: Path, config: Mapping[str, Any], stack: str = "aws-prod") -> Path:
    path = folder / f"Pulumi.{stack}.yaml"
    path.write_text(yaml.safe_dump({"config": config}, sort_keys=False), encoding="utf-8")
    return path


def of_aws(folder: Path) -> Path:
    """Settings whose first pool has on-demand capacity in the network of the group."""
    network = {"kind": "given", "id": "vpc-1", "cidr": "10.0.0.0/16", "subnets": SUBNETS}
    on_demand = {"on_demand": {"max": 4, "machine_types": ["g6.xlarge"]}}
    first = {**AWS[KEY]["pools"][0], "capacity": on_demand, "target": 1, "min": 0, "max": 4, "spare": 0}
    model = {"name": first["model"], "source": "hf://org/name@main", "weights_gib": 1.0}
    changes = {"network": network, "zones": list(SUBNETS), "pools": [first], "models": [model]}
    return written(folder, changed(AWS, changes))


def run(path: Path, *options: str, pool: str | None = None) -> Result:
    name = pool or yaml.safe_load(path.read_text())["config"][KEY]["pools"][0]["name"]
    command = ["import", "--group", "inference", "--pool", name, "--settings", str(path), *options]
    return CliRunner().invoke(build("import_group"), command)


def test_preview_lists_changes_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    path = of_aws(tmp_path)
    before = path.read_text()
    found = run(path)
    assert found.exit_code == 0, found
    assert "MaxSize" in found.stdout
    assert "1 -> 4" in found.stdout
    assert "Nothing is written" in found.stdout
    assert path.read_text() == before
    assert [*tmp_path.iterdir()] == [path]


def test_write_adds_the_setting_and_the_import_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    path = of_aws(tmp_path)
    problems = problems_of(path)
    for _ in ("first", "again"):
        assert run(path, "--write").exit_code == 0
        pool = yaml.safe_load(path.read_text())["config"][KEY]["pools"][0]
        assert pool["adopt"] == {"on-demand": "inference"}
        (document,) = tmp_path.glob("import-*.json")
        assert json.loads(document.read_text())["resources"][1]["id"] == "inference"
    assert problems_of(path) == problems


def test_refused_group_is_named_with_each_code_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, replace(GROUP, warm_pool=True, policies=("cpu",)))
    monkeypatch.chdir(tmp_path)
    path = of_aws(tmp_path)
    found = run(path, "--write")
    assert found.exit_code == 3
    assert "warm_pool: " in found.stdout
    assert "scaling_policies: " in found.stdout
    assert [*tmp_path.iterdir()] == [path]


def test_google_is_refused_with_its_code(tmp_path: Path) -> None:
    found = run(written(tmp_path, GCP, "gcp-prod"), "--json")
    assert found.exit_code == 3
    assert [one["code"] for one in json.loads(found.stdout)["refusals"]] == ["not_on_google"]


def test_credentials_of_another_account_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, account="999999999999")
    error = run(of_aws(tmp_path)).exception
    assert isinstance(error, AppError)
    assert "the credentials are of account 999999999999" in str(error)


def test_unknown_pool_is_refused(tmp_path: Path) -> None:
    error = run(of_aws(tmp_path), pool="missing").exception
    assert isinstance(error, AppError)
    assert "has no pool missing" in str(error)
