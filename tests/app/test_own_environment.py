"""A machine reads only documents of the environment that it was installed for."""

from pathlib import Path

import pytest

from app.errors import AppError
from app.fleets import ENVIRONMENTS, load_one
from app.router_fleet import LiveFleet
from gpufleet.settings.document import render
from hosts.control import units
from hosts.control.paths import HostPaths
from hosts.control.settings import ControlSettings
from tests.fixtures.router.router import document

OTHERS = document({"name": "chat", "model": "models/chat"})
"""A document of the environment `test`."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "fleet.json").write_text(render(OTHERS))
    return str(tmp_path / "fleet.json")


@pytest.mark.parametrize("own", ["prod", "prod staging"], ids=["one", "several"])
def test_a_document_of_another_environment_is_refused(url: str, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENTS, own)
    message = f"environment: is 'test', but GPUFLEET_ENVIRONMENT of this process is '{own}'"
    with pytest.raises(AppError, match=message):
        load_one(url)
    # as the router reads it, and the feed of the router, of Prometheus and of the console
    with pytest.raises(OSError, match=message):
        LiveFleet(url).document()


@pytest.mark.parametrize("own", [None, "", "test", "prod test"], ids=["unset", "empty", "its own", "one of several"])
def test_a_document_of_its_own_environment_is_read(
    url: str, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own is None:
        monkeypatch.delenv(ENVIRONMENTS, raising=False)
    else:
        monkeypatch.setenv(ENVIRONMENTS, own)
    assert load_one(url).environment == LiveFleet(url).document().environment == "test"


def test_every_unit_that_reads_a_document_gets_its_environment() -> None:
    settings = ControlSettings(fleet="s3://b/fleet.json", bucket="s3://b", environment={ENVIRONMENTS: "prod"})
    programs = {name: name for names in units.PROGRAMS.values() for name in names}
    texts = units.render(settings, HostPaths(), programs)
    readers = {name: text for name, text in texts.items() if "GPUFLEET_FLEET=" in text}
    assert len(readers) >= 6
    assert all('Environment="GPUFLEET_ENVIRONMENT=prod"' in text for text in readers.values())
