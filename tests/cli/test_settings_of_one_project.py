"""Two environments in one Google Cloud project are refused, unless the settings declare the project as shared."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands import build
from cli.settings import problems_of
from gpufleet.toolchain.folders import ROOT

CONFIG = ROOT / "stacks" / "config"
PROD = (CONFIG / "Pulumi.gcp-prod.yaml").read_text("utf-8")
STAGING = (CONFIG / "Pulumi.gcp-staging.yaml").read_text("utf-8")


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"Pulumi.{name}.yaml"
    path.write_text(text, "utf-8")
    return path


def shared(text: str) -> str:
    return text.replace("    account:", "    shared_project: true\n    account:", 1)


def problems(path: Path) -> list[str]:
    return [str(one) for one in problems_of(path) if "project" in one.wrong or "project" in one.path]


def test_two_environments_of_one_project_are_named_in_both_files(tmp_path: Path) -> None:
    prod = written(tmp_path, "gcp-prod", PROD)
    staging = written(tmp_path, "gcp-staging", STAGING.replace("example-staging", "example-project"))
    for path, other in ((prod, "staging"), (staging, "prod")):
        (problem,) = problems(path)
        assert f"is also the project of environment {other}" in problem
        assert "shared_project: true" in problem


@pytest.mark.parametrize(
    ("prod", "staging"),
    [
        pytest.param(PROD, STAGING, id="a project each"),
        pytest.param(shared(PROD), shared(STAGING).replace("example-staging", "example-project"), id="shared"),
        pytest.param(PROD, "config: [", id="the other file is broken"),
    ],
)
def test_allowed_combinations(tmp_path: Path, prod: str, staging: str) -> None:
    path = written(tmp_path, "gcp-prod", prod)
    written(tmp_path, "gcp-staging", staging)
    assert problems(path) == []


def test_names_that_begin_alike_cannot_share_a_project(tmp_path: Path) -> None:
    path = written(tmp_path, "gcp-prod", shared(PROD))
    written(tmp_path, "gcp-prod-eu", shared(PROD).replace("environment: prod", "environment: prod-eu"))
    (problem,) = problems(path)
    assert "prod and prod-eu" in problem.replace("'prod'", "prod") or "prod-eu" in problem


def test_aws_has_no_shared_project(tmp_path: Path) -> None:
    text = (CONFIG / "Pulumi.aws-prod.yaml").read_text("utf-8")
    (problem,) = problems(written(tmp_path, "aws-prod", shared(text)))
    assert "only for Google Cloud" in problem


def test_one_error_is_counted_as_one(tmp_path: Path) -> None:
    settings = written(tmp_path, "gcp-prod", PROD.replace("    account:", "    shared_project: 3\n    account:", 1))
    done = CliRunner().invoke(build("settings"), ["settings", "check", str(settings)])
    assert done.stdout.startswith(f"{settings}: 1 error\n")
