"""Tests of the check of a pull request by the base branch: valid plans, and the content of the report."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.judge_pull_request import LARGEST_REPORT, DataError, Verdict, judge, report

EXCEPTION = {"rule": "r", "resource": "a", "owner": "o", "reason": "why", "until": "2027-01-01"}


class Folders:
    """A base branch with the environment `aws-dev`, a pull request's checkout, and its plans."""

    def __init__(self, root: Path) -> None:
        self.base, self.checkout, self.plans = root / "base", root / "theirs", root / "plans"
        self.plans.mkdir()
        self.asked: list[str] = []
        self.code = 0
        self.settings(self.base, "aws-dev")
        self.settings(self.base, "aws-local")
        self.settings(self.checkout, "aws-dev")
        self.plan("aws-dev")

    def settings(self, checkout: Path, stack: str, **fleet: Any) -> None:
        path = checkout / "stacks" / "config" / f"Pulumi.{stack}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"config": config_of(fleet)}))

    def plan(self, stack: str, urn_stack: str = "", **fleet: Any) -> None:
        urn = f"urn:pulumi:{urn_stack or stack}::gpu-fleet::aws:s3/bucket:Bucket::b"
        made_with = {name: v if isinstance(v, str) else json.dumps(v) for name, v in config_of(fleet).items()}
        digest = {"config": made_with, "steps": [{"op": "create", "urn": urn}]}
        (self.plans / f"{stack}.json").write_text(json.dumps(digest))

    def judge(self) -> dict[str, Verdict]:
        def check(plan: Path, settings: Path) -> tuple[int, str]:
            assert plan.is_file() and settings.is_file()
            self.asked.append(plan.stem)
            return self.code, "the messages of the rules"

        verdicts = judge(self.plans, self.checkout, self.base, check, lambda plan, settings: (0, "cost"))
        return {verdict.stack: verdict for verdict in verdicts}

    def problems(self, stack: str = "aws-dev") -> str:
        return "; ".join(self.judge()[stack].problems)


def config_of(fleet: dict[str, Any]) -> dict[str, Any]:
    return {"aws:region": "us-east-1", "gpu-fleet:fleet": {"cloud": "aws", "target": 1, **fleet}}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_each_real_environment_is_checked_with_its_own_settings(folders: Folders) -> None:
    assert folders.problems() == ""
    assert folders.asked == ["aws-dev"]


def test_numbers_are_compared_as_numbers_since_the_engine_writes_them_in_its_own_way(folders: Folders) -> None:
    folders.settings(folders.checkout, "aws-dev", weights_gib=15.0)
    folders.plan("aws-dev", weights_gib=15)
    assert folders.problems() == ""


def test_an_environment_that_only_the_pull_request_has_is_checked(folders: Folders) -> None:
    folders.settings(folders.checkout, "gcp-new")
    assert "gcp-new.json is missing" in folders.problems("gcp-new")
    folders.plan("gcp-new")
    assert folders.problems("gcp-new") == ""


@pytest.mark.parametrize(
    ("code", "problem"), [(1, "refuse the plan"), (2, "could not judge the plan (exit 2)"), (-9, "(exit -9)")]
)
def test_a_plan_passes_only_if_all_checks_pass(folders: Folders, code: int, problem: str) -> None:
    folders.code = code
    assert problem in folders.problems()


def no_plan(folders: Folders) -> None:
    (folders.plans / "aws-dev.json").unlink()


def no_plans_at_all(folders: Folders) -> None:
    no_plan(folders)
    folders.plans.rmdir()


def a_link(folders: Folders) -> None:
    no_plan(folders)
    (folders.plans / "aws-dev.json").symlink_to("/dev/zero")


def a_fifo(folders: Folders) -> None:
    no_plan(folders)
    os.mkfifo(folders.plans / "aws-dev.json")


def not_json(folders: Folders) -> None:
    (folders.plans / "aws-dev.json").write_text("{")


def a_list(folders: Folders) -> None:
    (folders.plans / "aws-dev.json").write_text("[]")


def deep(folders: Folders) -> None:
    (folders.plans / "aws-dev.json").write_text("[" * 100_000)


def no_steps(folders: Folders) -> None:
    (folders.plans / "aws-dev.json").write_text(json.dumps({"config": {}, "steps": []}))


def too_large(folders: Folders) -> None:
    with (folders.plans / "aws-dev.json").open("wb") as file:
        file.truncate(65 * 1024 * 1024)


def of_another_stack(folders: Folders) -> None:
    folders.plan("aws-dev", urn_stack="aws-local")


def of_other_settings(folders: Folders) -> None:
    folders.plan("aws-dev", target=0)


def settings_removed(folders: Folders) -> None:
    (folders.checkout / "stacks" / "config" / "Pulumi.aws-dev.yaml").unlink()


def settings_linked(folders: Folders) -> None:
    settings_removed(folders)
    (folders.checkout / "stacks" / "config" / "Pulumi.aws-dev.yaml").symlink_to(
        folders.base / "stacks" / "config" / "Pulumi.aws-dev.yaml"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (no_plan, "aws-dev.json is missing"),
        (no_plans_at_all, "aws-dev.json is missing"),
        (a_link, "not a regular file"),
        (a_fifo, "not a regular file"),
        (not_json, "is not what `pulumi preview"),
        (a_list, "is not what `pulumi preview"),
        (deep, "is not what `pulumi preview"),
        (no_steps, "is not a plan of aws-dev"),
        (too_large, "larger than 64 MiB"),
        (of_another_stack, "is not a plan of aws-dev"),
        (of_other_settings, "other settings than stacks/config/Pulumi.aws-dev.yaml"),
        (settings_removed, "Pulumi.aws-dev.yaml is missing"),
        (settings_linked, "not a regular file"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_plan_of_another_environment_is_refused(folders: Folders, change: Any, problem: str) -> None:
    change(folders)
    assert problem in folders.problems()


@pytest.mark.parametrize("stack", ["prod", "aws-Prod", "aws-prod;id", "aws-a b", "--help", "aws-prod-", "azure-dev"])
def test_a_name_that_no_environment_may_have_is_refused_and_reaches_no_command(folders: Folders, stack: str) -> None:
    folders.plan(stack)
    assert "is not a valid name" in folders.problems(stack)
    assert folders.asked == ["aws-dev"]


@pytest.mark.parametrize("part", ["stacks", "stacks/config"])
def test_a_folder_of_settings_that_is_a_link_is_refused(folders: Folders, part: str) -> None:
    place = folders.checkout / part
    place.rename(folders.checkout / "elsewhere")
    place.symlink_to(folders.base / part)
    with pytest.raises(DataError, match="is not a folder"):
        folders.judge()


def test_exceptions_that_differ_from_the_base_branch_are_shown(folders: Folders) -> None:
    kept, new, removed = EXCEPTION, {**EXCEPTION, "resource": "b"}, {**EXCEPTION, "resource": "c"}
    folders.settings(folders.base, "aws-dev", policies={"exceptions": [kept, removed]})
    folders.settings(folders.checkout, "aws-dev", policies={"exceptions": [kept, new]})
    folders.plan("aws-dev", policies={"exceptions": [kept, new]})
    verdict = folders.judge()["aws-dev"]
    assert verdict.problems == []
    assert [(line[0], json.loads(line[2:])["resource"]) for line in verdict.exceptions] == [("+", "b"), ("-", "c")]
    assert verdict.exceptions[0] in report([verdict])


def test_a_report_is_printable_and_short_enough_for_a_comment() -> None:
    long = Verdict("aws-dev", rules="x" * 100_000, cost="\x1b[2J\u202e```\n::error::")
    text = report([long] + [Verdict(f"aws-{n}", rules="y" * 100_000) for n in range(20)])
    assert len(text) < LARGEST_REPORT + 100
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_one_environment_that_is_refused_refuses_the_pull_request() -> None:
    assert report([Verdict("aws-dev"), Verdict("aws-prod", ["no"])]).startswith("REFUSED")
    assert report([Verdict("aws-dev")]).startswith("PASSED")
