"""No local command can reach a real cloud."""

import subprocess
from pathlib import Path

import pytest
from localcloud.callers import TOKEN_FILE, VARIABLE, make_token
from localcloud.lifecycle.environment import (
    NO_TOKEN,
    exports,
    is_ours,
    is_stripped,
    local_environment,
    marked,
    token_of,
)
from localcloud.lifecycle.waiting import LocalError

from gpufleet.toolchain.folders import Folders

REAL = {
    "AWS_ACCESS_KEY_ID": "AKIAREAL",
    "AWS_SESSION_TOKEN": "real",
    "AWS_PROFILE": "production",
    "AWS_ENDPOINT_URL_S3": "https://s3.example.com",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
    "CLOUDSDK_CORE_PROJECT": "real",
    "PULUMI_ACCESS_TOKEN": "pul-real",
    "PULUMI_BACKEND_URL": "s3://real",
    "SLACK_WEBHOOK_URL": "https://hooks.slack.com/real",
    "https_proxy": "http://proxy:3128",
    "KUBECONFIG": "/home/me/.kube/config",
    "GPUFLEET_FLEET": "s3://production/fleet/fleet.json",
}
HARMLESS = {"HOME": "/home/me", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "GPUFLEET_CACHE": "/big/cache"}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(root=tmp_path / "a clone's", cache=tmp_path / "cache")


def test_no_real_value_is_passed_on(folders: Folders) -> None:
    environment = local_environment(folders, Path("/opt/pulumi/bin/pulumi"), REAL | HARMLESS)
    assert not set(REAL.values()) & set(environment.values())
    assert environment["AWS_ENDPOINT_URL"].startswith("http://127.")
    assert environment["PULUMI_BACKEND_URL"].startswith("file:///")
    assert {name: environment[name] for name in ("HOME", "GPUFLEET_CACHE")} == {
        name: HARMLESS[name] for name in ("HOME", "GPUFLEET_CACHE")
    }
    assert environment["PATH"].startswith(f"{folders.python.parent}:/opt/pulumi/bin:")


@pytest.mark.parametrize("name", sorted(REAL))
def test_variable_of_a_real_account_is_stripped(name: str) -> None:
    assert is_stripped(name)


@pytest.mark.parametrize("name", ["HOME", "PATH", "LANG", "SSL_CERT_FILE", "AWSOME", "GPUFLEET_CACHE", "NO_PROXY"])
def test_other_variables_are_kept(name: str) -> None:
    assert not is_stripped(name)


def test_shell_that_evaluates_the_exports_has_the_same_environment(folders: Folders) -> None:
    pulumi = Path("/opt/pulumi/bin/pulumi")
    text = exports(folders, pulumi, REAL | HARMLESS)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{text}\nexec env -0"], env=REAL | HARMLESS, capture_output=True, check=True, timeout=180
    )
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    wanted = local_environment(folders, pulumi, REAL | HARMLESS)
    assert {name: seen.get(name) for name in wanted} == wanted
    assert set(seen) - set(wanted) <= {"PWD", "SHLVL", "_", "OLDPWD"}


@pytest.mark.parametrize(
    ("environment", "ours"),
    [
        pytest.param({"GPUFLEET_LOCAL": "{local}"}, True, id="marked"),
        pytest.param({"GPUFLEET_LOCAL": "/other/.local"}, False, id="another clone's"),
        pytest.param({"GPUFLEET_ROOT": "{local}/machines/i-1"}, True, id="on a machine of ours"),
        pytest.param({"GPUFLEET_ROOT": "/other/.local/machines/i-1"}, False, id="on a machine of another clone"),
        pytest.param({}, False, id="an unrelated process"),
    ],
)
def test_owner_of_a_process(folders: Folders, environment: dict[str, str], ours: bool) -> None:
    filled = {name: value.format(local=folders.local) for name, value in environment.items()}
    assert is_ours(filled, folders) is ours
    assert is_ours(marked(filled, folders), folders)


def test_shell_and_commands_get_the_token_of_the_running_cloud(folders: Folders) -> None:
    with pytest.raises(LocalError, match="gpufleet local up"):
        token_of(folders)
    assert local_environment(folders, Path("/pulumi"), {})["AWS_SECRET_ACCESS_KEY"] == NO_TOKEN
    folders.cloud.mkdir(parents=True)
    earlier, token = make_token(folders.cloud), make_token(folders.cloud)
    assert earlier != token
    assert (folders.cloud / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    environment = local_environment(folders, Path("/pulumi"), {"GPUFLEET_EMULATOR_TOKEN": "of an earlier start"})
    assert token_of(folders) == token == environment["AWS_SECRET_ACCESS_KEY"] == environment[VARIABLE]
    assert environment["GPUFLEET_SLACK_TOKEN"] == f"xoxb-{token}"
    assert f"export {VARIABLE}={token}" in exports(folders, Path("/pulumi"), {})
