"""A pull request that edits the policy pack together with a violation. The check of the base branch refuses it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from gpufleet.toolchain.folders import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STACK = "aws-dev"
UNSAFE = """
import pulumi_aws as aws

aws.ec2.SecurityGroup(
    "backdoor",
    ingress=[{"protocol": "tcp", "from_port": 22, "to_port": 22, "cidr_blocks": ["0.0.0.0/0"]}],
)
"""
ALARM = """
import pulumi_aws as aws

aws.cloudwatch.MetricAlarm(
    "spend", comparison_operator="GreaterThanThreshold", evaluation_periods=1, namespace="AWS/Billing",
    metric_name="EstimatedCharges", period=3600, statistic="Maximum", threshold=1000,
)
"""
NO_RULES = "\nRULES = ()\n"


@dataclass(frozen=True)
class Checkouts:
    """Two checkouts of one repository: the base branch and the pull request."""

    base: Path
    theirs: Path
    plans: Path

    def run(self, checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run code of that checkout."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [sys.executable, "-m", *arguments], cwd=checkout, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def plan(self) -> None:
        """Run what the job `plan` runs: the pull request's code, in its checkout."""
        done = self.run(self.theirs, "scripts.plan_stacks", "--out", str(self.plans))
        assert done.returncode == 0, done.stderr

    def judge(self) -> tuple[int, str]:
        """Run what the job `judge` runs: the base branch's code."""
        out = self.base.parent / "report.txt"
        given = ("--plans", str(self.plans), "--checkout", str(self.theirs), "--out", str(out))
        done = self.run(self.base, "scripts.judge_pull_request", *given)
        return done.returncode, out.read_text() + done.stderr


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=180)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return this tree as the base branch, with one environment. Planning all environments takes a minute and adds no
    coverage.
    """
    folder = tmp_path_factory.mktemp("repository") / "base"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
        capture_output=True, timeout=180,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if name.startswith(("tests/", "docs/")) or not (ROOT / name).is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for path in (folder / "stacks" / "config").glob("*.yaml"):
        if path.name != f"Pulumi.{STACK}.yaml":
            path.unlink()
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base")
    return folder


@pytest.fixture
def checkouts(repository: Path, tmp_path: Path) -> Checkouts:
    theirs = tmp_path / "pull-request"
    git(repository, "worktree", "add", "--quiet", "-b", f"change-{tmp_path.name}", str(theirs))
    return Checkouts(repository, theirs, tmp_path / "plans")


def commit(checkouts: Checkouts) -> None:
    git(checkouts.theirs, "add", "--all")
    git(checkouts.theirs, "commit", "--quiet", "--message", "change")


def test_a_pull_request_that_changes_nothing_of_the_environment_passes(checkouts: Checkouts) -> None:
    checkouts.plan()
    code, report = checkouts.judge()
    assert code == 0, report
    assert report.startswith("PASSED")
    assert "USD" in report


def test_the_base_branch_checks_a_pull_request_that_edits_the_pack_and_its_lists(checkouts: Checkouts) -> None:
    theirs = checkouts.theirs
    with (theirs / "stacks" / "aws.py").open("a") as file:
        file.write(UNSAFE)
    with (theirs / "policies" / "pack.py").open("a") as file:
        file.write(NO_RULES)
    types = theirs / "policies" / "lists" / "resource_types.json"
    types.write_text(json.dumps({**json.loads(types.read_text()), "aws:ec2/securityGroup:SecurityGroup": [""]}))
    judge = theirs / "scripts" / "judge_pull_request.py"
    judge.write_text("import sys\nsys.exit(0)\n")
    commit(checkouts)
    checkouts.plan()
    plan, settings = checkouts.plans / f"{STACK}.json", theirs / "stacks" / "config" / f"Pulumi.{STACK}.yaml"
    own = checkouts.run(theirs, "cli.main", "policies", "check", str(plan), "--settings", str(settings))
    assert own.returncode == 0, own.stdout + own.stderr
    code, report = checkouts.judge()
    assert code == 1
    assert report.startswith("REFUSED")
    assert "the rules of the base branch refuse the plan" in report
    assert "backdoor" in report


def test_a_type_outside_the_program_needs_an_exception_that_the_report_shows(
    checkouts: Checkouts,
) -> None:
    """The embedded cloud does not have this type, but can still plan it."""
    with (checkouts.theirs / "stacks" / "aws.py").open("a") as file:
        file.write(ALARM)
    commit(checkouts)
    checkouts.plan()
    code, report = checkouts.judge()
    assert code == 1 and "resource-type-listed" in report and "spend" in report
    settings = checkouts.theirs / "stacks" / "config" / f"Pulumi.{STACK}.yaml"
    exception = {
        "rule": "resource-type-listed",
        "type": "aws:cloudwatch/metricAlarm:MetricAlarm",
        "resource": "spend",
        "owner": "search-team",
        "reason": "reports a growing bill",
        "until": (datetime.now(UTC) + timedelta(days=30)).date().isoformat(),
    }
    written = yaml.safe_load(settings.read_text())
    written["config"]["gpu-fleet:fleet"]["policies"]["exceptions"] = [exception]
    settings.write_text(yaml.safe_dump(written))
    commit(checkouts)
    checkouts.plan()
    code, report = checkouts.judge()
    assert code == 0, report
    assert '+ {"owner": "search-team"' in report


def test_a_pull_request_without_a_plan_is_refused(checkouts: Checkouts) -> None:
    code, report = checkouts.judge()
    assert code == 1
    assert f"{STACK}.json is missing" in report
