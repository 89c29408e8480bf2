import hashlib
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.model import CapacityType, Cloud
from serving.instance_settings import EngineSettings, InstanceSettings, to_json
from serving.user_data import FETCH, UserDataError, archive_key, render
from tests.fixtures import signing

AGENT = b"print('agent')\n"
SHA256 = hashlib.sha256(AGENT).hexdigest()
SETTINGS = InstanceSettings(
    environment="local",
    cloud=Cloud.AWS,
    region="us-east-1",
    pool="chat",
    capacity_type=CapacityType.SPOT,
    bucket="s3://models",
    model="models/chat",
    served_name="chat",
    engine=EngineSettings(kind="vllm", image="vllm@sha256:00", args=("--max-model-len", "2048")),
    dcgm_image="dcgm@sha256:00",
    engine_key="ssm:/gpu-fleet/local/engine-key",
    order_keys=(signing.key().public.text,),
    drain_deadline=timedelta(seconds=90),
)


def boot(
    script: str, folder: Path, aws: str, *, python3: str = "exit 0", agent: str = "inactive", version: str = "3.11.0"
) -> subprocess.CompletedProcess[str]:
    """Run user data in a folder, with substitutes for the image's commands."""
    commands = folder / "commands"
    commands.mkdir()
    bodies = {
        "aws": aws,
        "sleep": 'echo "sleep $*" >>"$CALLS.waits"',
        "python3": _python3(version, python3),
        "systemctl": f'[ "$*" = "is-active gpufleet-node.service" ] && echo {agent}',
        "poweroff": 'echo poweroff >>"$CALLS"',
    }
    for name, body in bodies.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    env = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "GPUFLEET_ROOT": str(folder / "root"),
        "CALLS": str(folder / "calls"),
        "AGENT": AGENT.decode(),
    }
    return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=180, check=False)


def _python3(version: str, runs: str) -> str:
    """Return the image's Python: it has this version, and counts other calls."""
    program = f"import sys; sys.version_info = {tuple(map(int, version.split('.')))}; exec(sys.argv[1])"
    return (
        f'[ "$1" = -c ] && exec {sys.executable} -c {shlex.quote(program)} "$2"\n'
        f'[ "$1" = -V ] && exec echo "Python {version}"\n'
        f'echo "python3 $*" >>"$CALLS"; {runs}'
    )


def test_the_settings_file_matches_the_contract() -> None:
    assert to_json(SETTINGS) == {
        "version": 1,
        "environment": "local",
        "cloud": "aws",
        "region": "us-east-1",
        "pool": "chat",
        "capacity_type": "spot",
        "group": None,
        "bucket": "s3://models",
        "model": "models/chat",
        "served_name": "chat",
        "engine": {"kind": "vllm", "image": "vllm@sha256:00", "args": ["--max-model-len", "2048"], "env": {}},
        "dcgm_image": "dcgm@sha256:00",
        "engine_key": "ssm:/gpu-fleet/local/engine-key",
        "order_keys": [signing.key().public.text],
        "cache_dir": "/mnt/nvme/models",
        "drain_deadline_s": 90,
        "drain_margin_s": 5,
        "metadata_poll_s": 5,
        "power_off_after_s": 900,
        "boot_limits_s": {"disks": 60, "cache": 1800, "engine": 900, "warm_up": 120},
    }


def test_node_exporter_settings_are_written_only_when_enabled() -> None:
    image = "mirror/node-exporter@sha256:00"
    written = to_json(replace(SETTINGS, node_exporter_image=image))
    assert written == {**to_json(SETTINGS), "node_exporter_image": image}


def test_a_boot_writes_the_settings_and_runs_the_expected_agent(tmp_path: Path) -> None:
    ran = boot(render(SETTINGS, SHA256), tmp_path, 'echo "aws $1 $2 $4" >>"$CALLS"; printf %s "$AGENT" >"$5"')
    assert ran.returncode == 0, ran.stderr
    root = tmp_path / "root"
    assert json.loads((root / "etc/gpu-fleet/instance.json").read_text()) == to_json(SETTINGS)
    archive = root / "opt/gpu-fleet/gpufleet-node.pyz"
    assert archive.read_bytes() == AGENT
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"aws s3 cp s3://models/{archive_key(SHA256)}",
        f"python3 {archive} boot",
    ]


@pytest.mark.parametrize(
    "aws",
    [
        pytest.param('printf evil >"$5"', id="other bytes"),
        pytest.param("exit 1", id="no such object"),
        pytest.param(":", id="nothing written"),
    ],
)
def test_an_agent_with_another_digest_never_runs(tmp_path: Path, aws: str) -> None:
    ran = boot(render(SETTINGS, SHA256), tmp_path, aws)
    assert ran.returncode == 1
    assert "the node agent could not be fetched; this machine powers off in 900 s" in ran.stderr
    # an instance without an agent costs money only as long as operators need to inspect it
    assert (tmp_path / "calls").read_text().splitlines() == ["poweroff"]
    waits = (tmp_path / "calls.waits").read_text().splitlines()
    assert waits == [f"sleep {seconds}" for seconds in (0, 1, 2, 4, 8, 16, 32, 64, 900)]


def test_a_machine_whose_agent_cannot_install_itself_powers_off(tmp_path: Path) -> None:
    ran = boot(render(SETTINGS, SHA256), tmp_path, 'printf %s "$AGENT" >"$5"', python3="exit 1")
    assert ran.returncode == 1
    assert "the node agent could not install itself" in ran.stderr
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["poweroff"]


@pytest.mark.parametrize("version", ["3.8.10", "3.10.12"])
def test_a_python_version_that_is_too_old_is_reported_and_nothing_is_fetched(tmp_path: Path, version: str) -> None:
    ran = boot(render(SETTINGS, SHA256), tmp_path, 'echo fetched >>"$CALLS"', version=version)
    assert ran.returncode == 1
    assert (
        f"the node agent needs Python 3.11 or newer as python3, but python3 is Python {version}; this machine"
        in ran.stderr
    )
    assert (tmp_path / "calls").read_text().splitlines() == ["poweroff"]


def test_a_machine_with_a_running_agent_stays_on_when_user_data_fails_later(tmp_path: Path) -> None:
    ran = boot(render(SETTINGS, SHA256), tmp_path, "exit 1", agent="active")
    assert ran.returncode == 1
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    "text", ["$(touch pwned)", "`id`", "GPUFLEET_SETTINGS", "it's", 'a "quote"', "100 %", "{x}", "ü"]
)
def test_settings_cannot_inject_commands(tmp_path: Path, text: str) -> None:
    settings = replace(SETTINGS, served_name=text, engine=replace(SETTINGS.engine, args=(text,)))
    ran = boot(render(settings, SHA256), tmp_path, 'printf %s "$AGENT" >"$5"')
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "root/etc/gpu-fleet/instance.json").read_text()) == to_json(settings)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("cloud", list(Cloud))
def test_user_data_is_valid_bash_on_both_clouds(cloud: Cloud) -> None:
    script = render(replace(SETTINGS, cloud=cloud), SHA256)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False, timeout=180).returncode == 0


def test_user_data_above_the_clouds_limit_is_refused() -> None:
    settings = replace(SETTINGS, engine=replace(SETTINGS.engine, args=("x" * 16384,)))
    with pytest.raises(UserDataError, match="user data of pool chat has .* shorten engine args or env"):
        render(settings, SHA256)


def test_the_google_boot_token_is_never_a_process_argument(tmp_path: Path) -> None:
    # this curl records its arguments, which every user can read, and its standard input
    body = (
        'echo "$*" >>"$SEEN.arguments"\n'
        'case "$*" in *service-accounts*) echo \'{"access_token":"ya29.secret"}\' ;; *) cat >"$SEEN.pipe" ;; esac'
    )
    (tmp_path / "curl").write_text(f"#!/bin/bash\n{body}\n")
    (tmp_path / "curl").chmod(0o755)
    script = f"set -euo pipefail\nfetch() {{\n  {FETCH[Cloud.GCP]}\n}}\nfetch gs://b/agents/a.pyz {tmp_path}/out\n"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    subprocess.run(["bash", "-c", script], env=env, check=True, timeout=180)
    arguments = (tmp_path / "seen.arguments").read_text()
    assert "/storage/v1/b/b/o/agents%2Fa.pyz?alt=media" in arguments
    assert "ya29" not in arguments
    assert (tmp_path / "seen.pipe").read_text() == 'header = "Authorization: Bearer ya29.secret"\n'
