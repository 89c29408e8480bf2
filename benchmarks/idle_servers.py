"""Simulates on loopback what an idle pass and the screens query: EC2 in pages, Auto Scaling, Prometheus and node
agents.

Responses are created in advance, so the measurement covers the pass alone. One of twenty instances is idle.
"""

import json
import selectors
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

from gpufleet.domain import tags
from hosts.monitoring import queries
from serving.accelerators import metrics
from serving.accelerators.queries import KIND_LABEL
from serving.engines import CONTRACTS

HOST: Final = "127.17.0.9"
AGENT_PORT: Final = 9500
PAGE: Final = 1000
GPUS: Final = 4
PER_POOL: Final = 25
QUIET_EVERY: Final = 20
WINDOW_S: Final = 1800
INTERVAL_S: Final = 15
MACHINE_TYPE: Final = "g6.12xlarge"
_CONFIG: Final = "".join(
    [
        "global: {scrape_interval: 15s}\nscrape_configs:\n",
        *(f"- job_name: {job}\n" for job in ("engine", "accelerator")),
    ]
)
_STATUS: Final = {
    "version": 1, "pool": "p", "phase": "ready", "phase_since": None, "ready": True,
    "draining": False, "drained": False, "reason": None, "requests_running": 0, "error": None,
}  # fmt: skip


ENVIRONMENT: Final = "bench"
SCREENS: Final = frozenset(
    {queries.PHASE, *queries.per_instance(ENVIRONMENT, timedelta(seconds=4 * INTERVAL_S)).values()}
)
"""Queries of the screens that return a number per instance."""
NEWEST: Final = "@newest@"
"""Placeholder for the time of the newest sample, which is always five seconds ago."""


@dataclass(slots=True)
class Answers:
    """Responses for a fleet of that number of instances, as bodies."""

    instances: int
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    pages: list[bytes] = field(default_factory=list[bytes])
    engine: bytes = b""
    gpu: bytes = b""
    screen: bytes = b""
    """One number per instance, as the screens query it."""

    def __post_init__(self) -> None:
        ids = range(self.instances)
        for start in range(0, self.instances, PAGE):
            more = start + PAGE < self.instances
            token = f"<nextToken>{start // PAGE + 1}</nextToken>" if more else ""
            items = "".join(self._instance(n) for n in ids[start : start + PAGE])
            body = f"<reservationSet>{items}</reservationSet>{token}"
            self.pages.append(_reply("DescribeInstances", body))
        self.engine = _answer(self._rows(_engine))
        self.gpu = _answer([*self._rows(_gpu), *self._rows(_gpu_kind, {KIND_LABEL: "nvidia"})])
        self.screen = _answer(self._rows(lambda quiet, at: {"phase": 0.0 if quiet else 0.8}, {"phase": "ready"}))

    def _instance(self, n: int) -> str:
        launched = (self.now - timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        written = {
            tags.ENVIRONMENT: ENVIRONMENT,
            tags.POOL: pool(n),
            tags.CAPACITY_TYPE: "spot",
            tags.OWNER: "bench",
            "aws:autoscaling:groupName": group(n),
        }
        tag_set = "".join(f"<item><key>{k}</key><value>{v}</value></item>" for k, v in written.items())
        disks = "".join(
            f"<item><deviceName>/dev/sd{d}</deviceName><ebs><volumeId>vol-{n:016x}{d}</volumeId><status>attached</status>"
            f"<attachTime>{launched}</attachTime></ebs></item>"
            for d in "ab"
        )
        return (
            f"<item><reservationId>r-{n:017x}</reservationId><ownerId>1</ownerId><instancesSet><item>"
            f"<instanceId>{instance_id(n)}</instanceId><imageId>ami-1</imageId>"
            f"<instanceState><code>16</code><name>running</name></instanceState>"
            f"<instanceType>{MACHINE_TYPE}</instanceType><launchTime>{launched}</launchTime>"
            f"<placement><availabilityZone>us-east-1{'abc'[n % 3]}</availabilityZone></placement>"
            f"<privateIpAddress>{address(n)}</privateIpAddress><instanceLifecycle>spot</instanceLifecycle>"
            f"<blockDeviceMapping>{disks}</blockDeviceMapping><tagSet>{tag_set}</tagSet>"
            f"</item></instancesSet></item>"
        )

    def _rows(self, stats: Any, labels: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        at = self.now.timestamp()
        return [
            {
                "metric": {"instance_id": instance_id(n), "stat": name, **(labels or {})},
                "value": [at, NEWEST if name == "newest" else str(value)],
            }
            for n in range(self.instances)
            for name, value in stats(n % QUIET_EVERY == 0, at).items()
        ]


def _answer(rows: list[dict[str, Any]]) -> bytes:
    return _prometheus({"resultType": "vector", "result": rows})


def instance_id(n: int) -> str:
    return f"i-{n:017x}"


def address(n: int) -> str:
    return f"127.17.{10 + n // 250}.{1 + n % 250}"


def pool(n: int) -> str:
    return f"pool-{n // PER_POOL}"


def group(n: int) -> str:
    return f"pool-{n // PER_POOL}-spot-{'abc'[n % 3]}"


def _engine(quiet: bool, at: float) -> dict[str, float]:
    busy = 0.0 if quiet else 1.0
    return {
        "running": 6 * busy, "waiting": 0.0, "newest": 0.0,
        "started": at - 18000, "pulse": 20.0, "changes0": 90 * busy, "changes1": 90 * busy, "changes2": 80 * busy,
        "tokens0": 1e6 * busy, "tokens1": 2e5 * busy, "sum": 6 * busy,
        **dict.fromkeys(("count", "intervals", "scrapes"), WINDOW_S / INTERVAL_S),
        **{f"reporting:{metric}": 1.0 for metric in CONTRACTS["vllm"].evidence.idle},
    }  # fmt: skip


def _gpu(quiet: bool, at: float) -> dict[str, float]:
    return {
        "active": 0.0 if quiet else 0.8, "lowest": 0.0, "newest": 0.0,
        **dict.fromkeys(("count", "intervals"), WINDOW_S / INTERVAL_S),
        "sum": 0.0, "missed": 0.0, "answers": 1.0, "util": 0.0 if quiet else 0.9, "watts": 20.0, "drawn_min": 20.0,
        "power_max": 20.0, "power_min": 20.0, "above_power": 1.0, "below_power": 1.0,
        "memory_max": 24e9, "memory_min": 24e9,
    }  # fmt: skip


def _gpu_kind(quiet: bool, at: float) -> dict[str, float]:
    del quiet, at
    return {
        "kind": 4.0 * GPUS, "units": GPUS, "gpus": GPUS, f"proof:{metrics.ACTIVE}": GPUS,
        f"metered:{metrics.ENERGY}": GPUS, f"pulse:{metrics.ENERGY}": 20.0, f"top:{metrics.ENERGY}": 1e9,
    }  # fmt: skip


def _reply(action: str, body: str) -> bytes:
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    return f'<{action}Response xmlns="{space}"><requestId>1</requestId>{body}</{action}Response>'.encode()


def _scaling(action: str, body: str) -> bytes:
    space = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
    meta = "<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
    return (
        f'<{action}Response xmlns="{space}"><{action}Result>{body}</{action}Result>{meta}</{action}Response>'.encode()
    )


def _groups(names: Iterable[str]) -> str:
    """Return groups without activity: all instances have one template and are in service."""
    template = "<LaunchTemplate><LaunchTemplateId>lt-1</LaunchTemplateId><Version>1</Version></LaunchTemplate>"
    members = "".join(
        f"<member><InstanceId>{instance_id(n)}</InstanceId><AvailabilityZone>us-east-1a</AvailabilityZone>"
        f"<LifecycleState>InService</LifecycleState><HealthStatus>Healthy</HealthStatus>{template}"
        "<ProtectedFromScaleIn>false</ProtectedFromScaleIn></member>"
        for n in range(PER_POOL // 3)
    )
    found = "".join(
        f"<member><AutoScalingGroupName>{name}</AutoScalingGroupName>{template}<Instances>{members}</Instances></member>"
        for name in names
    )
    return f"<AutoScalingGroups>{found}</AutoScalingGroups>"


def _prometheus(data: Any) -> bytes:
    return json.dumps({"status": "success", "data": data}).encode()


class _Handler(BaseHTTPRequestHandler):
    """Handles all four APIs, selected by path and Action."""

    protocol_version = "HTTP/1.1"
    answers: Answers
    instance: str = ""

    def do_GET(self) -> None:
        if self.path == "/status":
            self._send(json.dumps({**_STATUS, "instance": self.instance}).encode(), "application/json")
        else:
            self._send(_prometheus({"yaml": _CONFIG}), "application/json")

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        if self.path.startswith("/api/v1/query"):
            self._send(self._metrics(form["query"][0]), "application/json")
            return
        action = form["Action"][0]
        if action == "DescribeInstances":
            self._send(self.answers.pages[int(form.get("NextToken", ["0"])[0])], "text/xml")
        elif action == "CreateTags":
            self._send(_reply(action, "<return>true</return>"), "text/xml")
        elif action == "DescribeAutoScalingGroups":
            names = [value for key, (value,) in form.items() if key.startswith("AutoScalingGroupNames.")]
            self._send(_scaling(action, _groups(names)), "text/xml")
        else:
            self._send(_scaling(action, "<InstanceRefreshes/>"), "text/xml")

    def _metrics(self, query: str) -> bytes:
        if query in SCREENS:
            return self.answers.screen
        if not ("gpufleet_engine_" in query or "gpufleet_accelerator_" in query):
            return _prometheus({"resultType": "vector", "result": []})
        body = self.answers.engine if "gpufleet_engine_" in query else self.answers.gpu
        return body.replace(NEWEST.encode(), str(time.time() - 5).encode())

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def serving(instances: int) -> Iterator[None]:
    """Serve the APIs on one address, and the agent of each idle instance on its own address."""
    answers, stop = Answers(instances), threading.Event()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for n in range(0, instances, QUIET_EVERY):
            _listen(stack, selector, address(n), type("Agent", (_Handler,), {"instance": instance_id(n)}))
        _listen(stack, selector, HOST, type("Apis", (_Handler,), {"answers": answers}))
        thread = threading.Thread(target=_accept, args=(selector, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5)


def _listen(
    stack: ExitStack, selector: selectors.BaseSelector, host: str, handler: type[BaseHTTPRequestHandler]
) -> None:
    server = stack.enter_context(_Server((host, AGENT_PORT), handler))
    selector.register(server, selectors.EVENT_READ, server)


def _accept(selector: selectors.BaseSelector, stop: threading.Event) -> None:
    """Accept connections of all listeners in one thread. Each connection gets its own thread."""
    while not stop.is_set():
        for key, _ in selector.select(timeout=0.5):
            key.data.handle_request()
