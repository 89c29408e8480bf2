"""The demo's control host as a machine of the embedded cloud: created by `pulumi up`, terminated in the
middle of the demo, and replaced by another one with the same volume. Checks that the new one has the old one's data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import yaml
from localcloud.lifecycle.selected_cloud import stack_of
from localcloud.lifecycle.waiting import request_json
from localcloud.machines.spec import MachineSpec

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import find_folders
from hosts.control.paths import HostPaths
from scripts.demo import observe
from scripts.demo.session import DemoError, Session
from scripts.demo.traffic import Traffic

MACHINES: Final = {Cloud.AWS: "m6i.large", Cloud.GCP: "e2-standard-2"}
SERVING: Final = 'up{job="engine"} == 1'
REASON: Final = "set before its machine was lost"
UNCHANGED: Final = (
    r"^@ |ing \(\d+s\)| refresh \(|^\s*$|^\s+[\w-]+:[\w-]+:\S+ \S+\s*$|^\s+(groups|batch|chat|\[|\]|\})"
)
"""Lines of Pulumi about resources that are in progress or unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The control host that runs now."""

    id: str
    zone: str
    address: str
    places: HostPaths

    def run(self, session: Session, *arguments: str) -> None:
        """A command of its release, as a person on the machine gives it, echoed and shown."""
        self._there(session).run(self._program, *arguments, codes=(0, 3))

    def ask(self, session: Session, *arguments: str, codes: Sequence[int] = (0, 3)) -> Any:
        """The same, for its answer only: exit code and stdout."""
        return self._there(session).ask(self._program, *arguments, codes=codes)

    def _there(self, session: Session) -> Session:
        root = self.places.root
        fleet = {"GPUFLEET_FLEET": session.facts["fleet_url"]}
        # as its units do: a ledger with a relative path is on the volume
        environment = MachineSpec.load(root).environment(root) | fleet
        return replace(session, environment=environment, folder=self.places.ledger.parent)

    @property
    def _program(self) -> str:
        return str(self.places.current / "bin" / "gpufleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Data that a control host had before its end."""

    silence: str
    """Id of a silence of its Alertmanager."""
    at: float
    """When its Prometheus was queried for the engines that serve."""
    serving: frozenset[str]
    """Ids of their instances."""


def replace_in_the_middle(session: Session, traffic: Traffic) -> None:
    """Create a control host, give it data, end it, and wait for another. Raises DemoError if any data is lost."""
    session.title(
        "The control host as its own machine: created by pulumi up, lost and replaced; its volume keeps the data"
    )
    failed, fleet = traffic.counted().failed, _gpu_instances()
    made = session.run("gpufleet", "bundle", "--no-dependencies", "--json").json()
    session.settings = write_settings(session, made["sha256"])
    session.note("the same settings plus `control:`, with that bundle as its software")
    _up(session)
    first = _wait_until_well(session)
    traces = _leave_traces(session, first)
    _end(session, first)
    _up(session, "--refresh")
    second = _wait_until_well(session)
    _find_traces(session, second, traces)
    session.fact("control_hosts", [first.address, second.address])
    if changed := fleet ^ _gpu_instances():
        raise DemoError(f"GPU instances changed while the control host was replaced: {sorted(changed)}")
    lost = traffic.counted().failed - failed
    session.fact("failed_meanwhile", lost, f"GPU instances did not change; requests that failed meanwhile: {lost}")


def with_control(settings: dict[str, Any], cloud: Cloud, sha256: str) -> dict[str, Any]:
    """Settings of a local stack, changed in place: with a control host that runs that bundle."""
    fleet = settings["config"]["gpu-fleet:fleet"]
    fleet["control"] = {"machine_type": MACHINES[cloud], "image": fleet["machines"]["image"], "bundle": sha256}
    return settings


def write_settings(session: Session, sha256: str) -> tuple[str, ...]:
    """The stack's present settings with a control host, below `.local`. Returns Pulumi's arguments for them."""
    name = f"Pulumi.{stack_of(session.cloud)}.yaml"
    now = session.root / (session.settings[-1] if session.settings else f"stacks/config/{name}")
    changed = with_control(yaml.safe_load(now.read_text("utf-8")), session.cloud, sha256)
    file = find_folders(session.environment, session.root).local / "demo" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(changed, sort_keys=False), "utf-8")
    return ("--config-file", str(file.relative_to(session.root)))


def unprotect(session: Session) -> None:
    """Remove the protection of the volume with the ledger, so that `pulumi destroy` deletes it."""
    session.note("the control host's volume is protected from `pulumi destroy`; the demo removes the protection")
    session.run("pulumi", "state", "unprotect", "--all", "--yes", hide=UNCHANGED)


def _up(session: Session, *more: str) -> None:
    arguments = ("--yes", "--non-interactive", "--skip-preview", "--policy-pack", "policies")
    session.run("pulumi", "up", *more, *arguments, *session.settings, hide=UNCHANGED)


def _gpu_instances() -> frozenset[str]:
    return frozenset(one["id"] for one in observe.instances() if one["pool"])


def _found(session: Session) -> Host | None:
    machines = find_folders(session.environment, session.root).machines
    mine = [one for one in observe.instances() if one["type"] == MACHINES[session.cloud]]
    if not mine or not mine[0]["address"]:
        return None
    places = HostPaths(root=machines / mine[0]["id"])
    return Host(id=mine[0]["id"], zone=mine[0]["zone"], address=mine[0]["address"], places=places)


def _wait_until_well(session: Session) -> Host:
    def wrong() -> str | None:
        host = _found(session)
        if host is None:
            return "there is no such machine yet"
        if not host.places.token.is_file():
            return "it boots"
        done = host.ask(session, "host", "check", codes=(0, 1, 3))
        return None if done.code == 0 else str(done.stdout)

    session.wait("all services of the control host are healthy", wrong, session.variant.wait_s)
    host = _found(session)
    if host is None:
        raise DemoError("the control host disappeared after it was healthy")
    session.note(f"{host.id} in {host.zone}, {host.address}; on it:")
    host.run(session, "host", "check")
    return host


def _leave_traces(session: Session, host: Host) -> Traces:
    wanted = _gpu_instances()

    def missing() -> str | None:
        left = wanted - _serving(host, None)[1]
        return f"it has no sample of {sorted(left)}" if left else None

    session.wait("its Prometheus has found every engine", missing, session.variant.wait_s)
    at, serving = _serving(host, None)
    host.run(session, "pause", "batch", "--reason", REASON, "--for", "1h")
    silence = _silence(host)
    session.note(f"and a silence in its Alertmanager: {silence}")
    _chat(session, host, "its own router answers a chat request")
    return Traces(silence=silence, at=at, serving=serving)


def _find_traces(session: Session, host: Host, traces: Traces) -> None:
    host.run(session, "status")
    brakes = str(host.ask(session, "status", "--json").json())
    if REASON not in brakes:
        raise DemoError(f"the ledger of the new control host lacks the brake {REASON!r}")
    session.fact("brake_kept", True, "its ledger has the pause")
    known = observe.get_json(f"http://{host.address}:9093/api/v2/silence/{traces.silence}")
    if known is None or known["status"]["state"] != "active":
        raise DemoError(f"Alertmanager of the new control host lacks the silence {traces.silence}: {known}")
    session.fact("silence_kept", True, "its Alertmanager has the silence")
    if left := traces.serving - _serving(host, traces.at)[1]:
        raise DemoError(f"Prometheus of the new control host has lost its samples of {sorted(left)}")
    session.fact("samples_kept", True, f"its Prometheus has the earlier samples of {len(traces.serving)} engines")
    _chat(session, host, "its router answers a chat request")


def _end(session: Session, host: Host) -> None:
    session.note(f"{host.id} is terminated through the cloud's API, as in a hardware failure")
    if session.cloud is Cloud.AWS:
        import boto3

        boto3.client("ec2").terminate_instances(InstanceIds=[host.id])
    else:
        from localcloud.gcp.locations import PROJECT

        from gpufleet.clouds.gcp.calls import GoogleCalls

        GoogleCalls(PROJECT).finish("instances", "delete", zone=host.zone, instance=host.id)
    session.wait(
        "it is terminated",
        lambda: f"{host.id} still runs" if _found(session) is not None else None,
        session.variant.wait_s,
    )


def _serving(host: Host, at: float | None) -> tuple[float, frozenset[str]]:
    """The time, and the instances whose engines answer then, by its Prometheus. None: now."""
    when = "" if at is None else f"&time={at}"
    answer = observe.get_json(f"http://{host.address}:9090/api/v1/query?query={quote(SERVING)}{when}")
    found: list[Any] = [] if answer is None else answer["data"]["result"]
    ids = frozenset(one["metric"]["instance_id"] for one in found)
    return (float(found[0]["value"][0]) if found else 0.0), ids


def _silence(host: Host) -> str:
    now = datetime.now(UTC)
    body = {
        "matchers": [{"name": "alertname", "value": "SpotLost", "isRegex": False}],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "demo",
        "comment": REASON,
    }
    url = f"http://{host.address}:9093/api/v2/silences"
    status, answer = request_json(url, json.dumps(body).encode(), "POST", 30)
    if status != 200:
        raise DemoError(f"{url} answers {status}: {answer[:200]!r}")
    return str(json.loads(answer)["silenceID"])


def _chat(session: Session, host: Host, text: str) -> None:
    body = {"model": "chat", "max_tokens": 8, "messages": [{"role": "user", "content": "are you there"}]}
    url = f"http://{host.address}:8080/v1/chat/completions"

    def refused() -> str | None:
        try:
            status, answer = request_json(url, json.dumps(body).encode(), "POST", 60)
        except OSError as error:
            return f"{url}: {error}"
        return None if status == 200 else f"{url} answers {status}: {answer[:200]!r}"

    # its router has to meet every agent first
    session.wait(text, refused, session.variant.wait_s)
