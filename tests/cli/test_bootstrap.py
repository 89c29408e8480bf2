"""`gpufleet bootstrap`: what it refuses before any call, and how it reports credentials that cannot be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.errors import AppError, ErrorCode
from cli.commands import build
from gpufleet.toolchain.folders import ROOT

CONFIG = """
[profile garbage]
credential_process = echo hello
[profile missing]
credential_process = /nonexistent/tool
[profile keys]
aws_access_key_id = AKIDFIRST
aws_secret_access_key = secret
[profile mfa]
role_arn = arn:aws:iam::444455556666:role/x
source_profile = keys
mfa_serial = arn:aws:iam::111122223333:mfa/alice
"""
IMPORT = ("import", "--group", "g", "--pool", "chat", "--settings", "stacks/config/Pulumi.aws-dev.yaml")
BOOTSTRAP = ("bootstrap", "dev", "--region", "us-east-1")
LOGIN = "log in (`aws sso login`), or name a profile (AWS_PROFILE)"


def run(*arguments: str, config: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command without credentials of this machine."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env = {"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": str(config)}
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT, env=plain | env | variables, capture_output=True, text=True, timeout=180, check=False,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize("command", [IMPORT, BOOTSTRAP], ids=["import", "bootstrap"])
@pytest.mark.parametrize(
    ("config", "profile", "message"),
    [
        pytest.param(CONFIG, "nope", "The config profile (nope) could not be found", id="unknown profile"),
        pytest.param("[profile x\nfoo", "x", "Unable to parse config file", id="malformed file"),
        pytest.param(CONFIG, "garbage", "profile 'garbage': it printed no valid JSON", id="no JSON"),
        pytest.param(CONFIG, "missing", "profile 'missing': [Errno 2] No such file", id="no program"),
        pytest.param(CONFIG, "mfa", "needs an MFA code, and there is no terminal", id="MFA without a terminal"),
        pytest.param("", "", "Unable to locate credentials", id="none"),
    ],
)
def test_credentials_that_cannot_be_loaded_are_one_clear_error(
    tmp_path: Path, command: tuple[str, ...], config: str, profile: str, message: str
) -> None:
    file = tmp_path / "config"
    file.write_text(config)
    done = run(*command, config=file, **({"AWS_PROFILE": profile} if profile else {}))
    assert done.returncode == 1 and message in done.stderr and LOGIN in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "what was created" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["dev", "--region", "us-est-1"],
            "--region: 'us-est-1' is not a known region of aws; did you mean us-west-1 or us-east-1 or us-west-2?",
            id="typo",
        ),
        pytest.param(
            ["dev", "--region", "us-central1"],
            "choose a region of aws: us-central1 is a region of gcp",
            id="region of another cloud",
        ),
        pytest.param(["dev", "--region", ""], "--region: expected the name of a region; got ''", id="no region"),
        pytest.param(
            ["Dev", "--region", "us-east-1"],
            "ENVIRONMENT: expected at most 16 lowercase letters, digits and hyphens, with a letter first and no"
            " hyphen last; got 'Dev'",
            id="name of an environment",
        ),
        pytest.param(
            ["dev", "--region", "us-central1", "--project", "X_Y"],
            "--project: expected the id of a Google Cloud project, as `gcloud projects list` shows it; got 'X_Y'",
            id="name of a project",
        ),
    ],
)
def test_names_that_cannot_exist_are_refused_before_any_call(arguments: list[str], message: str) -> None:
    error = CliRunner().invoke(build("bootstrap"), ["bootstrap", *arguments]).exception
    assert isinstance(error, AppError) and error.code is ErrorCode.WRONG_USE
    assert message in str(error)
