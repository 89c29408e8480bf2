"""Code in the engine's container requests the machine's credentials: only root of the machine gets them."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from serving import engine_container, exporter_units
from serving.accelerators import CONTRACTS
from serving.engine_container import EngineContainer
from serving.engines.launch import EngineServer

CONTAINER = EngineContainer(
    kind="vllm",
    image="vllm@sha256:" + "a" * 64,
    server=EngineServer(
        model_path=PurePosixPath("/m"), served_name="chat", host="10.0.0.1", port=8000, shutdown_timeout_s=90
    ),
)
ADDRESS = "169.254.169.254"


def before_each_start() -> list[list[str]]:
    unit = engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/c"))
    lines = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStartPre=")]
    return [shlex.split(line) for line in lines if "tables" in line]


def test_an_engine_is_not_started_if_metadata_cannot_be_blocked() -> None:
    assert [command[0] for command in before_each_start()] == ["-iptables", "iptables", "-ip6tables", "-ip6tables"]


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("iptables", "unshare", "setpriv", "ip"))),
    reason="needs root, iptables and network namespaces",
)
def test_the_engines_user_reaches_name_servers_but_no_metadata(tmp_path: Path) -> None:
    """In a separate network; twice, like for an engine that is restarted."""
    serve = tmp_path / "serve.py"
    serve.write_text(
        "import socket, sys\n"
        f"all = [socket.create_server(({ADDRESS!r}, port)) for port in (80, 53)]\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
    )
    rules = [command for command in before_each_start() if command[0].endswith("iptables")] * 2
    made = "\n".join(shlex.join([command[0].removeprefix("-"), *command[1:]]) for command in rules)
    python = shlex.quote(str(Path(sys.executable).resolve()))
    user, group = engine_container.USER
    script = f"""
    ip link set lo up && ip address add {ADDRESS}/32 dev lo || exit 9
    mkfifo {tmp_path}/end; exec 3<>{tmp_path}/end
    {python} {serve} <{tmp_path}/end >{tmp_path}/up &
    until grep -q up {tmp_path}/up; do :; done
    {made}
    iptables -S OUTPUT | grep -c {ADDRESS}
    for port in 80 53; do
        bash -c ": <>/dev/tcp/{ADDRESS}/$port" && echo root $port
        setpriv --reuid {user} --regid {group} --clear-groups bash -c ": <>/dev/tcp/{ADDRESS}/$port" &&
            echo engine $port
    done
    kill %1
    """
    command = ["unshare", "--net", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode == 9 or "unshare" in done.stderr:
        pytest.skip(f"no network namespaces here: {done.stderr}")
    assert done.stdout.splitlines() == ["1", "root 80", "root 53", "engine 53"], done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("iptables", "unshare", "setpriv", "ip"))),
    reason="needs root, iptables and network namespaces",
)
def test_the_gpu_exporter_answers_and_opens_no_connections(tmp_path: Path) -> None:
    """The exporter is root of the machine, so the rule that reserves metadata for root does not block it."""
    unit = exporter_units.exporter_unit(CONTRACTS["nvidia"].launch, image="dcgm@sha256:" + "b" * 64, host="10.0.0.1")
    lines = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStartPre=")]
    rules = [line.removeprefix("-") for line in lines if "iptables" in line] * 2
    serve = tmp_path / "serve.py"
    serve.write_text(
        "import socket, sys\n"
        f"metadata, page = [socket.create_server(({ADDRESS!r}, port)) for port in (80, 9400)]\n"
        "print('up', flush=True)\n"
        "page.accept()[0].sendall(b'metrics')\n"
        "sys.stdin.read()\n"
    )
    python, made = shlex.quote(str(Path(sys.executable).resolve())), "\n".join(rules)
    exporter = f"setpriv --regid {exporter_units.EXPORTER_GROUP} --clear-groups"
    script = f"""
    ip link set lo up && ip address add {ADDRESS}/32 dev lo || exit 9
    {made}
    mkfifo {tmp_path}/end; exec 3<>{tmp_path}/end
    {exporter} {python} {serve} <{tmp_path}/end >{tmp_path}/up &
    until grep -q up {tmp_path}/up; do :; done
    iptables -S OUTPUT | grep -c 'gid-owner {exporter_units.EXPORTER_GROUP}'
    {exporter} bash -c ": <>/dev/tcp/{ADDRESS}/80" && echo exporter
    bash -c ": <>/dev/tcp/{ADDRESS}/80" && echo root
    bash -c "cat </dev/tcp/{ADDRESS}/9400 & sleep 1; kill %1" && echo
    kill %1
    """
    command = ["unshare", "--net", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode == 9 or "unshare" in done.stderr:
        pytest.skip(f"no network namespaces here: {done.stderr}")
    assert done.stdout.split() == ["1", "root", "metrics"], done.stderr
