"""Calls without credentials go only to emulators on loopback."""

from collections.abc import Callable

import pytest

from gpufleet.clouds.gcp import secrets
from gpufleet.clouds.gcp.bootstrap import GoogleRest
from gpufleet.clouds.gcp.calls import ENDPOINT, GoogleCalls
from gpufleet.clouds.gcp.emulator import emulator
from gpufleet.domain.activity import CloudError

OTHER_ADDRESSES = [
    "https://compute.googleapis.com",
    "http://10.0.0.1:1",
    "http://192.0.2.1:80",
    "http://127.evil.example",
    "http://127.0.0.1.evil.example:4567",
    "http://127.0.0.1@evil.example",
    "http://[::ffff:127.0.0.1]:1",
    "http://[127.0.0.1",
    "127.0.0.1:4567",
    "compute",
]
READERS: dict[str, tuple[str, Callable[[], object]]] = {
    "Compute Engine": (ENDPOINT, lambda: GoogleCalls("p").one("regions", "get", region="us-central1")),
    "bootstrap": (ENDPOINT, GoogleRest),
    "secrets": (secrets.ENDPOINT, lambda: secrets.read_secret("p", "token")),
}


@pytest.mark.parametrize("endpoint", OTHER_ADDRESSES)
@pytest.mark.parametrize("reader", READERS)
def test_an_emulator_address_outside_of_loopback_is_refused(
    monkeypatch: pytest.MonkeyPatch, reader: str, endpoint: str
) -> None:
    variable, ask = READERS[reader]
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(CloudError, match=f"{variable} is .* must be an address on loopback"):
        ask()


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4567", "http://127.44.0.2:4567", "", None])
def test_an_emulator_on_loopback_is_accepted(monkeypatch: pytest.MonkeyPatch, endpoint: str | None) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    if endpoint is not None:
        monkeypatch.setenv(ENDPOINT, endpoint)
    assert emulator(ENDPOINT) == (endpoint or None)
