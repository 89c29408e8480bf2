"""A fleet document from a bucket cannot obtain a database password: the server must be verified, and cleartext
authentication is refused."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import make_url

from app import ledgers
from app.errors import AppError
from gpufleet.ledger.database import open_database
from gpufleet.ledger.schema import LedgerError, open_ledger
from gpufleet.settings import document
from gpufleet.settings.document.ledger import why_unverified
from tests.fixtures.model_document import DOCUMENT
from tests.fixtures.stacks.settings_files import AWS, changed, problems

BUCKET, FILE = "s3://b/fleet/fleet.json", "/home/me/fleet.json"
PASSWORD = "the-ledgers-real-password"


def read(url: str, source: str = BUCKET) -> document.FleetDocument:
    return document.parse(json.dumps({**DOCUMENT, "ledger_url": url}), source)


VERIFIED = (
    "sqlite:////var/lib/gpu-fleet/ledger.db",
    "sqlite:///ledger.db",
    "postgresql://ledger@db.internal/ledger?sslmode=verify-full",
    "postgresql://ledger@db.internal:5433/ledger?sslmode=verify-full&sslrootcert=/etc/ssl/rds.pem&connect_timeout=5",
    "postgresql+psycopg://ledger@db.internal/ledger?sslmode=verify-full&require_auth=scram-sha-256",
    "postgresql://ledger@127.0.0.1:5432/ledger",
    "postgresql://ledger@localhost/ledger",
    "postgresql://ledger@[::1]:5432/ledger",
    "postgresql://ledger@/ledger?host=/var/run/postgresql",
    "postgresql:///ledger",
)
UNVERIFIED = (
    "postgresql://ledger@db.evil/ledger",
    "postgresql+psycopg://ledger@db.evil/ledger",
    "postgresql://ledger@db.evil/ledger?sslmode=require",
    "postgresql://ledger@db.evil/ledger?sslmode=verify-ca",
    "postgresql://ledger@db.evil/ledger?sslmode=verify-full&sslmode=disable",
    "postgresql://ledger@db.evil/ledger?application_name=sslmode=verify-full",
    "postgresql://ledger@127.0.0.1/ledger?host=db.evil",
    "postgresql://ledger@127.0.0.1/ledger?hostaddr=203.0.113.7",
    "postgresql://ledger@/ledger?host=/var/run/postgresql,db.evil",
    "postgresql://ledger@/ledger?host=localhost&host=db.evil",
    "postgresql://ledger@localhost,db.evil/ledger",
    "postgresql://ledger@localhost.db.evil/ledger",
    "postgresql://ledger@127.0.0.1.db.evil/ledger",
    "postgresql://x:?sslmode=verify-full&a=/@db.evil/ledger",
    "postgresql://u:p@127.0.0.1#@db.evil/ledger",
    "postgresql://ledger@127.0.0.1/ledger?service=theirs",
    "postgresql://ledger@db.evil/ledger?sslmode=verify-full&service=theirs",
    "postgresql://ledger@db.evil/ledger?sslmode=verify-full&require_auth=password",
    "postgresql://ledger@127.0.0.1/ledger?require_auth=scram-sha-256,password",
    "postgresql://ledger@127.0.0.1:{port}/ledger",
    "postgresql://ledger@127.0.0.1/ledger?%68ost=db.evil",
    "postgresql://ledger@/ledger?host=localhost%2Cdb.evil",
    "postgresql://ledger@db.evil/ledger?sslmode=verify-full&%73slmode=disable",
    "mysql://ledger@db.evil/ledger",
    "db.evil",
)


@pytest.mark.parametrize("url", VERIFIED)
def test_verified_servers_and_loopback_pass(url: str) -> None:
    assert why_unverified(url) is None
    make_url(url)


@pytest.mark.parametrize("url", UNVERIFIED)
def test_ledger_on_an_unverified_server_is_not_opened(url: str) -> None:
    found = read(url)
    for opens in (ledgers.open_ledger_of, ledgers.read_ledger_of, ledgers.present_ledger_of):
        with pytest.raises(AppError, match="ledger_url.*sslmode=verify-full"):
            opens(found)


def test_document_on_the_local_disk_is_trusted() -> None:
    assert read("postgresql://ledger@db.internal/ledger", FILE).why_no_ledger is None
    assert read("postgresql://ledger@db.internal/ledger", "gs://b/fleet/fleet.json").why_no_ledger is not None


def test_router_settings_are_readable_when_the_ledger_is_refused() -> None:
    assert read("postgresql://ledger@db.evil/ledger").router.url == "http://127.0.0.1:8080"


@pytest.mark.parametrize("url", ["postgresql://ledger@db.internal/ledger", "postgresql://u@h/db?sslmode=prefer"])
def test_unverified_ledger_url_in_settings_is_reported(url: str) -> None:
    assert any("ledger_url: has no sslmode=verify-full" in one for one in problems(changed(AWS, {"ledger_url": url})))


def test_settings_with_verified_tls_pass() -> None:
    assert problems(changed(AWS, {"ledger_url": "postgresql://u@h/db?sslmode=verify-full"})) == []


class UnknownDatabase:
    """A server that asks for the password in clear text."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.port: int = listening.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self._ask(connection)

    def _ask(self, connection: socket.socket) -> None:
        while True:
            size = struct.unpack("!I", connection.recv(4))[0]
            code = struct.unpack("!I", connection.recv(size - 4)[:4])[0]
            if code not in (80877103, 80877104):
                break
            connection.sendall(b"N")  # no TLS, no GSSAPI
        connection.sendall(b"R" + struct.pack("!II", 8, 3))  # AuthenticationCleartextPassword
        answer = connection.recv(1024)
        if answer:
            self.received.append(answer)


@pytest.fixture
def unknown() -> Iterator[UnknownDatabase]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield UnknownDatabase(listening)


def test_password_is_never_sent_in_clear_text(unknown: UnknownDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    url = f"postgresql://ledger@127.0.0.1:{unknown.port}/ledger"
    with pytest.raises(Exception, match="scram-sha-256"):
        open_database(url).connect()
    with pytest.raises(LedgerError, match="scram-sha-256"):
        open_ledger(url)
    assert unknown.received == []


def test_environment_variable_allows_clear_text_for_the_own_process(
    unknown: UnknownDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGREQUIREAUTH", "password")
    with pytest.raises(LedgerError):
        open_ledger(f"postgresql://ledger@127.0.0.1:{unknown.port}/ledger")
    assert PASSWORD.encode() in unknown.received[0]


@pytest.mark.parametrize(
    ("cloud", "place"),
    [
        ("aws", "ssm:/prod/db/master-password"),
        ("aws", "ssm:/gpu-fleet/other/engine-key"),
        ("aws", "gcp-secret:projects/p/secrets/gpu-fleet-dev-engine-key"),
        ("gcp", "gcp-secret:projects/000000000000/secrets/database"),
        ("gcp", "gcp-secret:projects/another/secrets/gpu-fleet-dev-engine-key"),
        ("gcp", "gcp-secret:projects/000000000000/secrets/x/secrets/gpu-fleet-dev-engine-key"),
    ],
)
@pytest.mark.parametrize("name", ["engine_key", "orders"])
def test_secrets_of_another_environment_are_refused(cloud: str, place: str, name: str) -> None:
    value = {"private_key": place, "public_keys": []} if name == "orders" else place
    text = json.dumps({**DOCUMENT, "cloud": cloud, name: value})
    with pytest.raises(document.DocumentError, match="is not a secret of dev"):
        document.parse(text, BUCKET)
