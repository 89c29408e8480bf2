"""Secrets of a control host: read by reference at boot, kept in memory for its units, never printed."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from app.control_host import fetch_secrets, make_token
from gpufleet.clouds import secrets
from gpufleet.domain.activity import CloudError
from hosts.control import layout, units
from hosts.control.paths import HostPaths, User
from hosts.control.settings import ControlSettings

SETTINGS = ControlSettings(
    fleet="s3://models/fleet/fleet.json",
    bucket="s3://models",
    environment={"AWS_DEFAULT_REGION": "us-east-1"},
    secrets={"GPUFLEET_SLACK_TOKEN": "ssm:/a/slack", "GPUFLEET_SLACK_APP_TOKEN": "ssm:/a/app"},
)


def fetched(folder: Path, known: dict[str, str]) -> tuple[HostPaths, list[str]]:
    """Fetch the secrets as a boot does; return the paths and the printed lines."""
    places, printed = HostPaths(root=folder), list[str]()
    layout.prepare(places, None)

    def read(reference: str, region: str) -> str:
        assert region == "us-east-1"
        if reference not in known:
            raise CloudError("AccessDeniedException")
        return known[reference]

    fetch_secrets(places, SETTINGS, read, printed.append)
    return places, printed


def seen_by_a_shell(places: HostPaths, variable: str) -> str:
    """Return the value that a shell reads from the file; systemd and shells use the same quoting."""
    script = f'set -a; . "{places.secrets(User.WATCH)}"; printf %s "${variable}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=180, check=True)
    return done.stdout


@pytest.mark.parametrize("value", ["xoxb-1-abc", 'a"b', "a$HOME`x`", "a\\b", "a b#c", ""])
def test_units_read_the_exact_value(tmp_path: Path, value: str) -> None:
    places, printed = fetched(tmp_path, {"ssm:/a/slack": value, "ssm:/a/app": "xapp-2"})
    assert printed == []
    assert seen_by_a_shell(places, "GPUFLEET_SLACK_TOKEN") == value
    assert seen_by_a_shell(places, "GPUFLEET_SLACK_APP_TOKEN") == "xapp-2"


def test_the_file_is_private_and_in_memory(tmp_path: Path) -> None:
    places, _ = fetched(tmp_path, {"ssm:/a/slack": "1", "ssm:/a/app": "2"})
    for path in (places.secrets(User.WATCH), places.secrets(User.CONSOLE)):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.is_relative_to(tmp_path / "run"), "a file system in memory"
        assert not path.is_relative_to(places.data)


def test_an_unreadable_secret_is_reported_and_the_other_is_available(tmp_path: Path) -> None:
    places, printed = fetched(tmp_path, {"ssm:/a/app": "xapp-2"})
    remedy = "correct this, then run `gpufleet host start`"
    assert printed == [f"GPUFLEET_SLACK_TOKEN: ssm:/a/slack cannot be read: AccessDeniedException: {remedy}"]
    assert places.secrets(User.WATCH).read_text() == 'GPUFLEET_SLACK_APP_TOKEN="xapp-2"\n'


def test_a_value_cannot_inject_a_variable(tmp_path: Path) -> None:
    places, printed = fetched(tmp_path, {"ssm:/a/slack": "x\nLD_PRELOAD=/tmp/x", "ssm:/a/app": "2"})
    assert "LD_PRELOAD" not in places.secrets(User.WATCH).read_text() + " ".join(printed)


def test_each_service_reads_only_its_own_secrets() -> None:
    programs = {name: name for name in ("prometheus", "prometheus-alertmanager", "haproxy")}
    found = {
        name.removeprefix("gpufleet-").removesuffix(".service"): re.findall(r"^EnvironmentFile=-(.+)$", text, re.M)
        for name, text in units.render(SETTINGS, HostPaths(), programs).items()
        if name.endswith(".service")
    }
    watch, console = ["/run/gpu-fleet/secrets/watch.env"], ["/run/gpu-fleet/secrets/console.env"]
    assert found == {
        **{"boot": [], "recover": [], "feed": [], "router": [], "prometheus": [], "alertmanager": []},
        **{"watch": watch, "backup": watch, "digest": watch, "console": console},
    }


def test_the_watchdogs_get_slack_and_the_console_gets_the_ledgers_password(tmp_path: Path) -> None:
    places = HostPaths(root=tmp_path)
    layout.prepare(places, None)
    places.own_secrets.write_text("# by hand\nPGPASSWORD=p\nGPUFLEET_SLACK_APP_TOKEN='mine'\n")
    fetch_secrets(places, SETTINGS, lambda reference, region: "theirs", list[str]().append)
    watch, console = (places.secrets(user).read_text().splitlines() for user in (User.WATCH, User.CONSOLE))
    assert watch == ['GPUFLEET_SLACK_TOKEN="theirs"', "GPUFLEET_SLACK_APP_TOKEN='mine'", "PGPASSWORD=p"]
    assert console == ["PGPASSWORD=p"]


def test_manual_secrets_are_never_read_through_a_link(tmp_path: Path) -> None:
    places, strange = HostPaths(root=tmp_path), tmp_path / "shadow"
    layout.prepare(places, None)
    strange.write_text("root=secret\n")
    places.own_secrets.symlink_to(strange)
    with pytest.raises(OSError, match="symbolic links"):
        fetch_secrets(places, SETTINGS, lambda reference, region: "1", list[str]().append)


@pytest.mark.parametrize(
    "reference", ["", "ssm:", "xoxb-1-abc", "gcp-secret:slack", "gcp-secret:projects/p/secrets/"]
)
def test_an_invalid_secret_reference_is_an_error(reference: str) -> None:
    with pytest.raises(CloudError, match="is not a supported secret reference"):
        secrets.read(reference, "us-east-1")


def test_settings_contain_only_names_of_secrets() -> None:
    written = replace(SETTINGS, secrets={}).to_json() | {"secrets": SETTINGS.secrets}
    assert written == SETTINGS.to_json()


@pytest.mark.parametrize("there", [None, "", "\n"], ids=["none", "cut off", "blank"])
def test_a_missing_token_is_created(tmp_path: Path, there: str | None) -> None:
    places = HostPaths(root=tmp_path)
    layout.prepare(places, None)
    if there is not None:
        places.token.write_text(there)
    make_token(places, None)
    made = places.token.read_text()
    assert len(made.strip()) == 48
    assert {places.token_for(user).read_text() for user in (User.CONSOLE, User.ALERTMANAGER)} == {made}
    assert places.token.stat().st_mode & 0o777 == 0o600
    make_token(places, None)
    assert places.token.read_text() == made
