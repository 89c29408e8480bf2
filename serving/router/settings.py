"""Settings and file paths of one HAProxy process."""

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
    """Format a time for HAProxy's configuration, in the largest exact unit: `10m`, `30s`, `500ms`."""
    ms = duration // timedelta(milliseconds=1)
    for unit, size in (("m", 60_000), ("s", 1_000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """The settings of one HAProxy process."""

    bind: str = "127.0.0.1:8080"
    """Address and port for clients."""
    metrics_bind: str = "127.0.0.1:8404"
    """Address and port of the metrics: HAProxy's own at /metrics, the controller's at /router/metrics."""
    certificate: str = ""
    """PEM file with certificate and key; `self`: a self-signed one; empty: plain HTTP."""
    threads: int = 1
    buffer_bytes: int = 262_144
    """Maximum request bytes that are read for the model name; larger requests need the header x-model."""
    check_interval: timedelta = timedelta(seconds=1)
    """Interval of health checks (engine, /health) of a replica."""
    check_timeout: timedelta = timedelta(seconds=3)
    """Timeout of a health check. Three timeouts in a row mean that the engine hangs."""
    agent_interval: timedelta = timedelta(milliseconds=500)
    """Interval of agent checks: the maximum delay before a drain is noticed."""
    agent_silent_limit: timedelta = timedelta(seconds=30)
    """A replica whose node agent does not respond for this long gets no new requests."""
    unreachable_limit: timedelta = timedelta(seconds=10)
    """Time until requests on a machine are ended that answers neither check, not even with a refusal."""
    slow_start: timedelta = timedelta(seconds=5)
    """Time until a new replica gets its full share."""
    connect_timeout: timedelta = timedelta(seconds=1)
    """Timeout of connections to an engine in the same network; then another engine is tried."""
    request_timeout: timedelta = timedelta(seconds=30)
    """Timeout for a client to send its whole request; it ends slow senders."""
    response_timeout: timedelta = timedelta(minutes=10)
    """Maximum silence of a replica: a long response without streaming arrives all at once."""
    queue_timeout: timedelta = timedelta(seconds=30)
    max_connections: int = 4_000
    """Maximum connections; each needs two file descriptors. HAProxy accepts fewer if the system limit is lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPaths:
    """Files of one router, all in its state folder."""

    state: Path

    @property
    def config(self) -> Path:
        return self.state / "haproxy.cfg"

    @property
    def candidate(self) -> Path:
        """A configuration before its check."""
        return self.state / "haproxy.cfg.new"

    @property
    def engine_key(self) -> Path:
        """The API key of the engines: a secret, in no other file."""
        return self.state / engine_key.FILE_NAME

    @property
    def server_state(self) -> Path:
        """State of HAProxy's servers before a reload."""
        return self.state / SERVER_STATE

    @property
    def access_log(self) -> Path:
        """One line for each request; no header, query or body."""
        return self.state / "access.log"

    @property
    def log(self) -> Path:
        """HAProxy's own messages."""
        return self.state / "haproxy.log"

    @property
    def lock(self) -> Path:
        return self.state / "router.lock"

    @property
    def last_document(self) -> Path:
        """The last valid fleet document."""
        return self.state / "fleet.json"

    @property
    def last_policy(self) -> Path:
        """The last valid routing policy."""
        return self.state / "router.json"

    @property
    def last_replicas(self) -> Path:
        """The replicas of the last complete inventory, and its time."""
        return self.state / "replicas.json"

    @property
    def meter(self) -> Path:
        """Metering counters, and the position in the log."""
        return self.state / "meter.json"

    @property
    def status(self) -> Path:
        return self.state / "status.json"
