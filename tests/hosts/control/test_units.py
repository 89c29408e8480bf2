"""The units of a control host, verified by systemd, and its boot data, run in a folder."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from cli.commands import build
from gpufleet.domain.model import Cloud
from hosts.control import boot_data, bundle, units
from hosts.control.paths import HostPaths
from hosts.control.settings import ControlSettings, ControlSettingsError, Role, load
from serving.user_data import UserDataError

SETTINGS = ControlSettings(
    fleet="s3://models/fleet/fleet.json",
    bucket="s3://models",
    volume="/dev/disk/by-id/volume",
    environment={"AWS_DEFAULT_REGION": "us-east-1"},
)
ROUTER = replace(SETTINGS, role=Role.ROUTER, volume=None)
PROGRAMS = {name: f"/usr/bin/{name}" for name in ("prometheus", "prometheus-alertmanager", "haproxy")}
SHA256 = "ab" * 32


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("settings", [SETTINGS, ROUTER], ids=lambda settings: str(settings.role))
def test_systemd_accepts_every_unit(tmp_path: Path, settings: ControlSettings) -> None:
    places = HostPaths(root=tmp_path)
    (places.current / "bin").mkdir(parents=True)
    programs = {name: str(places.current / "bin" / name) for name in (*PROGRAMS, "gpufleet")}
    for program in programs.values():
        Path(program).write_text("#!/bin/sh\n")
        Path(program).chmod(0o755)
    folder = tmp_path / "units"
    folder.mkdir()
    for name, text in units.render(settings, places, programs).items():
        (folder / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(map(str, folder.iterdir()))],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_services_of_each_role() -> None:
    def names(settings: ControlSettings) -> list[str]:
        found = units.services(settings, HostPaths(), PROGRAMS)
        return [one.name.removeprefix("gpufleet-").removesuffix(".service") for one in found]

    assert names(SETTINGS) == ["feed", "alertmanager", "prometheus", "router", "watch", "console"]
    assert names(replace(SETTINGS, routes=False)) == ["feed", "alertmanager", "prometheus", "watch", "console"]
    assert names(ROUTER) == ["router"]
    assert "gpufleet-backup.timer" not in units.render(ROUTER, HostPaths(), PROGRAMS)


@pytest.mark.parametrize("settings", [SETTINGS, ROUTER], ids=lambda settings: str(settings.role))
def test_each_timer_is_enabled_and_has_its_service(settings: ControlSettings) -> None:
    texts = units.render(settings, HostPaths(), PROGRAMS)
    assert sorted(units.timers(settings)) == sorted(name for name in texts if name.endswith(".timer"))
    tree: Any = get_command(build())
    for timer in units.timers(settings):
        [line] = re.findall(r"^ExecStart=(.+)$", texts[timer.replace(".timer", ".service")], re.MULTILINE)
        command, arguments = tree, line.split()[1:]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        assert set(arguments) <= {name for parameter in command.params for name in parameter.opts}, line


def test_only_services_for_other_machines_listen_on_the_network() -> None:
    texts = units.render(SETTINGS, HostPaths(), PROGRAMS)
    open_ = {name for name, text in texts.items() if "0.0.0.0" in text}
    assert open_ == {"gpufleet-router.service", "gpufleet-console.service"}


AS_ROOT = (units.BOOT, f"{units.RECOVER}.service")
"""Units that mount the volume, create users, and start and stop the others."""


def _confined(settings: ControlSettings) -> dict[str, dict[str, list[str]]]:
    """Return the units that do not run as root: unit -> key -> values."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, text in units.render(settings, HostPaths(), PROGRAMS).items():
        if name.endswith(".service") and name not in AS_ROOT:
            keys = found.setdefault(name.removeprefix("gpufleet-").removesuffix(".service"), {})
            for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
                keys.setdefault(key, []).append(value)
    return found


def test_each_service_has_its_own_user() -> None:
    users = {name: keys["User"] for name, keys in _confined(SETTINGS).items()}
    watch = ["gpufleet-watch"]
    assert users == {
        **{name: [f"gpufleet-{name}"] for name in ("router", "prometheus", "alertmanager", "console")},
        **{"watch": watch, "feed": watch, "backup": watch, "digest": watch},
    }
    assert all(keys["InaccessiblePaths"] == ["-/var/lib/gpu-fleet/host"] for keys in _confined(SETTINGS).values())


def test_only_the_watchdogs_user_reaches_instance_metadata() -> None:
    denied = ["169.254.169.254 fd00:ec2::254 fd20:ce::254"]
    for name, keys in _confined(SETTINGS).items():
        assert (keys.get("IPAddressDeny") == denied) == (keys["User"] != ["gpufleet-watch"]), name
    [router] = _confined(ROUTER).values()
    assert "IPAddressDeny" not in router, "on a dedicated machine, only the router itself can call the cloud"


def test_services_without_credentials_get_the_path_of_the_feed() -> None:
    for name, keys in _confined(SETTINGS).items():
        own = "GPUFLEET_FLEET=s3://models/fleet/fleet.json" in " ".join(keys.get("Environment", []))
        assert own == (keys["User"] == ["gpufleet-watch"]), name
        fed = "--feed /run/gpu-fleet/feed" in keys["ExecStart"][0]
        assert fed == (name in ("router", "console")), name


HARDEST_EXPOSURE: Final = {"router": 1.7, "prometheus": 1.7, "alertmanager": 1.7, "console": 1.7, "watch": 1.9}
"""Maximum exposure level in `systemd-analyze security`, of 10. All units of the watchdogs' user have its limit."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_no_unit_is_more_exposed_than_it_must_be(tmp_path: Path) -> None:
    texts = units.render(SETTINGS, HostPaths(), PROGRAMS)
    for name in _confined(SETTINGS):
        path = tmp_path / f"gpufleet-{name}.service"
        path.write_text(texts[path.name])
        limit = HARDEST_EXPOSURE.get(name, HARDEST_EXPOSURE["watch"])
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={limit * 10:.0f}", path],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stdout[-3000:]} {done.stderr}"


def test_the_settings_file_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    path.write_text(json.dumps(SETTINGS.to_json()))
    assert load(path) == SETTINGS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "role": "cook"}'])
def test_an_invalid_settings_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "control.json"
    path.write_text(text)
    with pytest.raises(ControlSettingsError, match=r"control\.json"):
        load(path)


def boot(script: str, folder: Path, aws: str) -> subprocess.CompletedProcess[str]:
    """Run boot data in a folder, with fakes of the image's commands."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    for name, body in {"aws": aws, "sleep": "exit 0"}.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    env = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "GPUFLEET_ROOT": str(folder / "root"),
        "CALLS": str(folder / "calls"),
    }
    return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture
def packed(tmp_path: Path) -> bundle.Bundle:
    """A bundle whose command writes its arguments."""
    folder = tmp_path / "bundle"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "gpufleet").write_text('#!/bin/sh\necho "gpufleet $*" >>"$CALLS"\n')
    (folder / "bin" / "gpufleet").chmod(0o755)
    path = tmp_path / "bundle.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder / "bin", "bin")
    import hashlib

    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return bundle.Bundle(path=path, sha256=sha256, bytes=path.stat().st_size, files=1)


def test_a_boot_installs_the_given_bundle(tmp_path: Path, packed: bundle.Bundle) -> None:
    script = boot_data.render(SETTINGS, Cloud.AWS, "us-east-1", packed.sha256)
    copy = f'echo "aws $1 $2 $4" >>"$CALLS"; cp {packed.path} "$5"'
    assert boot(script, tmp_path, copy).returncode == 0
    root = tmp_path / "root"
    places = HostPaths(root=root)
    assert places.current.resolve() == places.release(packed.sha256)
    assert load(places.settings) == SETTINGS
    fetched = f"aws s3 cp s3://models/{bundle.key(packed.sha256)}"
    assert (tmp_path / "calls").read_text().splitlines() == [fetched, "gpufleet host install"]
    assert sorted(path.name for path in places.releases.iterdir()) == [packed.sha256], "nothing half done is left"
    assert bundle.is_unpacked(packed.sha256, places.release(packed.sha256)), "a later release verifies it"
    assert boot(script, tmp_path, "exit 1").returncode == 0, "a second boot fetches nothing"
    assert (tmp_path / "calls").read_text().splitlines()[2:] == ["gpufleet host install"]


def test_a_bundle_with_another_digest_never_runs(tmp_path: Path, packed: bundle.Bundle) -> None:
    script = boot_data.render(SETTINGS, Cloud.AWS, "us-east-1", SHA256)
    ran = boot(script, tmp_path, f'cp {packed.path} "$5"')
    assert ran.returncode == 1 and "the bundle could not be fetched" in ran.stderr
    assert not (tmp_path / "calls").exists() and not HostPaths(root=tmp_path / "root").current.exists()


@pytest.mark.parametrize("name", ["", "ab", "AB" * 32, "ab" * 32 + "\n", "../" * 20])
def test_boot_data_name_a_bundle_only_by_its_digest(name: str) -> None:
    with pytest.raises(UserDataError, match="64 hexadecimal digits"):
        boot_data.render(SETTINGS, Cloud.AWS, "r", name)


@pytest.mark.parametrize("cloud", list(Cloud))
def test_both_clouds_accept_the_boot_data(cloud: Cloud) -> None:
    script = boot_data.render(SETTINGS, cloud, "r", SHA256)
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=180, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert len(script.encode()) < 16 * 1024
