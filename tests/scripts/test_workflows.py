"""Tests of the CI workflows: checks with two tools, and properties that the tools do not check."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.toolchain.folders import ROOT, find_folders
from scripts.setup import actionlint

FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
ACTIONLINT = actionlint.place(find_folders(os.environ))


def workflow(name: str) -> dict[str, Any]:
    # YAML 1.1 parses the key `on` as true
    raw = yaml.safe_load((FOLDER / name).read_text())
    return {("on" if key is True else key): value for key, value in raw.items()}


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing() -> None:
    run(str(Path(sys.executable).with_name("zizmor")), "--offline", "--persona=pedantic", "--no-config", str(FOLDER))


@pytest.mark.skipif(not ACTIONLINT.exists(), reason="actionlint is not installed: make setup-tests")
def test_actionlint_finds_nothing() -> None:
    run(str(ACTIONLINT), *map(str, FILES))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_action_is_pinned_by_commit_with_its_version(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert used
    assert [line for line in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_job_has_a_secret_or_more_rights_than_it_states(path: Path) -> None:
    made = workflow(path.name)
    assert made["permissions"] == {}
    assert "pull_request_target" not in made["on"] and "workflow_run" not in made["on"]
    assert "secrets" not in path.read_text()
    for job in made["jobs"].values():
        assert "id-token" not in job["permissions"]
        assert job["timeout-minutes"] <= 20


def test_only_the_job_that_runs_no_code_may_write() -> None:
    jobs = workflow("preview.yml")["jobs"]
    rights = {name: job["permissions"] for name, job in jobs.items()}
    assert rights == {
        "plan": {"contents": "read"},
        "judge": {"contents": "read"},
        "comment": {"pull-requests": "write"},
    }
    assert not [step for step in jobs["comment"]["steps"] if "checkout" in step.get("uses", "")]


def test_the_judge_always_runs_and_uses_only_code_of_the_base_branch() -> None:
    """A skipped job counts as passed for a required check."""
    judge = workflow("preview.yml")["jobs"]["judge"]
    assert judge["if"] == "${{ !cancelled() }}"
    checkouts = {step["with"]["path"]: step["with"] for step in judge["steps"] if "checkout" in step.get("uses", "")}
    assert checkouts["base"]["ref"] == "${{ github.base_ref }}"
    assert checkouts["pull-request"]["sparse-checkout"] == "stacks/config"
    assert {step["working-directory"] for step in judge["steps"] if "run" in step} == {"base"}


def test_preview_runs_for_every_pull_request_so_that_it_can_be_required() -> None:
    assert workflow("preview.yml")["on"] == {"pull_request": {"branches": ["main"]}}


def comment_of(report: bytes, tmp_path: Path) -> str:
    """Return the text that the step of the job `comment` writes."""
    steps = workflow("preview.yml")["jobs"]["comment"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "Write the comment"]
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.txt").write_bytes(report)
    environment = {
        "PATH": os.environ["PATH"],
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "RESULT": "failure",
    }
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environment, check=True, timeout=180)
    return (tmp_path / "comment.md").read_bytes().decode("ascii")


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(b"```\n@everyone ![x](https://example.org/x.png)\n", id="a fence"),
        pytest.param("\u202e\x1b[2J~~~\n".encode() + bytes(range(256)), id="control characters"),
        pytest.param(b"x" * 1_000_000, id="a million characters"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_report_stays_inside_its_code_block(report: bytes, tmp_path: Path) -> None:
    text = comment_of(report, tmp_path)
    assert len(text) < 65_536
    assert text.startswith("## Policies: failure\n")
    fences = [number for number, line in enumerate(text.splitlines()) if line.startswith("```")]
    assert fences == [4, len(text.splitlines()) - 1]
    assert "\x1b" not in text
