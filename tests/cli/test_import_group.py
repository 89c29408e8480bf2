"""`gpufleet import`: what it shows and writes, what it calls, and what it refuses."""

import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from botocore.exceptions import NoCredentialsError
from typer.testing import CliRunner, Result

from app.errors import AppError
from cli import import_group
from cli.commands import build
from cli.settings import problems_of
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.existing_groups import ACTIONS
from gpufleet.domain.existing_group import ExistingGroup
from gpufleet.settings import KEY
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.clouds.aws_clockwork import Clockwork, clockwork
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


def run(path: Path, *options: str, pool: str | None = None, group: str = "inference") -> Result:
    name = pool or yaml.safe_load(path.read_text())["config"][KEY]["pools"][0]["name"]
    command = ["import", "--group", group, "--pool", name, "--settings", str(path), *options]
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


def test_write_keeps_the_mode_and_the_line_ends_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    path = of_aws(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    path.chmod(0o600)
    lines = path.read_bytes().count(b"\r\n")
    assert run(path, "--write").exit_code == 0
    assert path.read_bytes().count(b"\r\n") == path.read_bytes().count(b"\n") == lines + 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_file_is_replaced_only_with_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    path, place = of_aws(tmp_path), tmp_path / "my file.json"
    place.write_text("precious")
    before = path.read_text()
    found = run(path, "--write", "--import-file", str(place))
    assert isinstance(found.exception, AppError) and "exists: choose another file, or" in str(found.exception)
    assert (place.read_text(), path.read_text()) == ("precious", before)
    found = run(path, "--write", "--import-file", str(place), "--force")
    assert found.exit_code == 0 and json.loads(place.read_text())["resources"]
    assert f"pulumi import --file '{place}' --stack" in found.stdout


def test_a_folder_is_refused_as_import_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    path = of_aws(tmp_path)
    before = path.read_text()
    error = run(path, "--write", "--import-file", ".").exception
    assert isinstance(error, AppError) and str(error) == ". is a folder; name a file in it"
    assert path.read_text() == before


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
    assert "the credentials belong to account 999999999999" in str(error)


def test_missing_credentials_are_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NoCredentialsError

    client = SimpleNamespace(get_caller_identity=refuse)
    monkeypatch.setattr(import_group, "AwsCalls", lambda region: AwsCalls(region, lambda _: client))
    error = str(run(of_aws(tmp_path)).exception)
    assert error.endswith("Unable to locate credentials; log in (`aws sso login`), or name a profile (AWS_PROFILE)")


def test_unknown_pool_is_refused(tmp_path: Path) -> None:
    error = run(of_aws(tmp_path), pool="missing").exception
    assert isinstance(error, AppError)
    assert "has no pool missing" in str(error)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clockwork]:
    """An emulated AWS with the group and one member."""
    with clockwork(tmp_path_factory.mktemp("cloud")) as cloud:
        cloud.group("inference")
        cloud.run(60)
        yield cloud


@pytest.fixture
def calls(emulated: Clockwork, monkeypatch: pytest.MonkeyPatch) -> AwsCalls:
    """The calls of a command, which the emulated AWS answers."""
    made = AwsCalls("us-east-1", emulated.client)
    monkeypatch.setattr(import_group, "AwsCalls", lambda _: made)
    return made


def of_emulated(folder: Path, cloud: Clockwork) -> Path:
    path = of_aws(folder)
    document = yaml.safe_load(path.read_text())
    document["config"][KEY]["account"] = cloud.client("sts").get_caller_identity()["Account"]
    path.write_text(yaml.safe_dump(document))
    return path


def test_calls_are_those_of_the_documented_actions(tmp_path: Path, emulated: Clockwork, calls: AwsCalls) -> None:
    assert run(of_emulated(tmp_path, emulated)).exit_code == 3, "the group is in another network"
    made = {f"{service}:{emulated.client(service).meta.method_to_api_mapping[operation]}"
            for service, operation in (name.split(":") for name in calls.counts)}  # fmt: skip
    assert made - {"sts:GetCallerIdentity"} == set(ACTIONS)
    guide = (ROOT / "docs" / "first-week.md").read_text("utf-8")
    (line,) = [line for line in guide.splitlines() if line.startswith("A preview needs `autoscaling:")]
    assert re.findall(r"Describe\w+", line) == [action.partition(":")[2] for action in ACTIONS]


def test_unknown_group_is_an_error_with_region_and_similar_names(
    tmp_path: Path, emulated: Clockwork, calls: AwsCalls
) -> None:
    for name, hint in (("inferense", "; similar names: inference"), ("other", ""), ("", "")):
        error = run(of_emulated(tmp_path, emulated), group=name).exception
        assert str(error) == f"group {name!r} does not exist in us-east-1, the region of the settings{hint}"


def test_missing_permission_is_an_error_with_all_that_are_needed(
    tmp_path: Path, emulated: Clockwork, calls: AwsCalls
) -> None:
    emulated.ask(
        "api-fault", service="ec2", operation="DescribeVolumes", code="UnauthorizedOperation", status=403, times=1
    )
    error = str(run(of_emulated(tmp_path, emulated)).exception)
    assert "ec2:describe_volumes in us-east-1 was refused: UnauthorizedOperation" in error
    assert error.endswith(f"the command needs {', '.join(ACTIONS)}")
