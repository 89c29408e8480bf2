"""How one HAProxy process runs, and where its files lie."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from serving.router import engine_key

ADMIN_SOCKET: Final = "admin.sock"
ACTIVATOR_SOCKET: Final = "activator.sock"
INNER_SOCKET: Final = "inner.sock"
METRICS_SOCKET: Final = "controller.sock"
SERVER_STATE: Final = "servers.state"
CERTIFICATE: Final = "router.pem"


def written(duration: timedelta) -> str:
    """A time as HAProxy's configuration has it, in the largest unit that is exact: `10m`, `30s`, `500ms`."""
    ms = duration // timedelta(milliseconds=1)
    for unit, size in (("m", 60_000), ("s", 1_000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """One HAProxy process."""

    bind: str = "127.0.0.1:8080"
    """Address and port for clients."""
    metrics_bind: str = "127.0.0.1:8404"
    """Address and port of the metrics: HAProxy's own at /metrics, the controller's at /router/metrics."""
    certificate: str = ""
    """PEM file with certificate and key; `self`: one of the router's own; empty: plain HTTP."""
    threads: int = 1
    buffer_bytes: int = 262_144
    """Most of a request that is read for its model name; larger ones need the header x-model."""
    check_interval: timedelta = timedelta(seconds=1)
    """Between two health checks (engine, /health) of a replica."""
    check_timeout: timedelta = timedelta(seconds=3)
    """For the answer to a check; three in a row that take longer are a hung engine."""
    agent_interval: timedelta = timedelta(milliseconds=500)
    """Between two agent checks: how late a drain may be noticed."""
    agent_silent_limit: timedelta = timedelta(seconds=30)
    """A replica whose node agent has not answered for this long gets no new requests."""
    unreachable_limit: timedelta = timedelta(seconds=10)
    """Requests on a machine that answers neither check, not even with a refusal, are ended after this."""
    slow_start: timedelta = timedelta(seconds=5)
    """A replica that has just come gets its full share after this."""
    connect_timeout: timedelta = timedelta(seconds=1)
    """To an engine, in the same network; then another one is tried."""
    request_timeout: timedelta = timedelta(seconds=30)
    """For a client to send its whole request; ends slow senders."""
    response_timeout: timedelta = timedelta(minutes=10)
    """Longest silence of a replica: a long answer that is not streamed comes all at once."""
    queue_timeout: timedelta = timedelta(seconds=30)
    most_connections: int = 4_000
    """Needs two file descriptors each; HAProxy takes fewer where the system allows fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPaths:
    """Files of one router, all in its state folder."""

    state: Path

    @property
    def config(self) -> Path:
        return self.state / "haproxy.cfg"

    @property
    def candidate(self) -> Path:
        """A configuration that was not checked yet."""
        return self.state / "haproxy.cfg.new"

    @property
    def engine_key(self) -> Path:
        """The key that engines ask for: a secret, in no other file."""
        return self.state / engine_key.FILE_NAME

    @property
    def server_state(self) -> Path:
        """What HAProxy knew of its servers before a reload."""
        return self.state / SERVER_STATE

    @property
    def access_log(self) -> Path:
        """One line for each request; no header, query or body."""
        return self.state / "access.log"

    @property
    def log(self) -> Path:
        """What HAProxy says of itself."""
        return self.state / "haproxy.log"

    @property
    def lock(self) -> Path:
        return self.state / "router.lock"

    @property
    def last_document(self) -> Path:
        """The last fleet document that was good."""
        return self.state / "fleet.json"

    @property
    def last_policy(self) -> Path:
        """The last routing policy that was good."""
        return self.state / "router.json"

    @property
    def last_replicas(self) -> Path:
        """The replicas of the last inventory that was whole, and when that was."""
        return self.state / "replicas.json"

    @property
    def meter(self) -> Path:
        """Counters of the metering, and how far the log was read."""
        return self.state / "meter.json"

    @property
    def status(self) -> Path:
        return self.state / "status.json"
