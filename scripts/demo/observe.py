"""Reads the state of the embedded cloud, the router, Prometheus and Slack between the commands of the demo."""

import json
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from localcloud.lifecycle import cloud_client
from localcloud.lifecycle.environment import token_of
from localcloud.lifecycle.parts import CLOUD, PROMETHEUS_URL
from localcloud.lifecycle.waiting import request_json

from gpufleet.toolchain.folders import find_folders
from scripts.demo.session import DemoError, Session
from serving.engines import CONTRACTS
from serving.exposition import parse
from serving.metrics import NODE_ENGINE_INFO

AGENT_PORT: Final = 9500
ALIVE: Final = frozenset({"pending", "provisioning", "running", "staging"})
"""States of an instance that has not ended, on both clouds."""


def instances(pool: str | None = None) -> list[dict[str, Any]]:
    """The instances that the cloud reports and that have not ended."""
    found = cloud_client.ask("state")["instances"]
    alive = [one for one in found if one["state"].lower() in ALIVE]
    return [one for one in alive if pool is None or one["pool"] == pool]


def groups(pool: str) -> dict[str, int]:
    """Desired size of each group of a pool."""
    found = cloud_client.ask("state")["groups"]
    # a group is named for its pool; Google's carry no labels that would say so, too
    return {one["name"]: one["desired"] for one in found if one["name"].startswith(f"{pool}-")}


def agent_status(instance: dict[str, Any]) -> dict[str, Any] | None:
    """The status that the node agent reports; None if it does not answer."""
    return get_json(f"http://{instance['address']}:{AGENT_PORT}/status")


def engine_of(instance: Mapping[str, Any]) -> str | None:
    """Return the engine and its release, as the node agent identifies it; None while the agent does not."""
    page = _text(f"http://{instance['address']}:{AGENT_PORT}/metrics") or ""
    for sample in parse(page):
        if sample.name == NODE_ENGINE_INFO.name and sample.labels["version"]:
            return f"{CONTRACTS[sample.labels['kind']].title} {sample.labels['version']}"
    return None


@contextmanager
def phases_of(instance: dict[str, Any]) -> Generator[list[str]]:
    """Collect the phases that an instance's agent reports, also short ones, in order, until the block ends."""
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            phase = (agent_status(instance) or {}).get("phase")
            if phase is not None and phase not in seen[-1:]:
                seen.append(str(phase))

    thread = threading.Thread(target=watch, name="phases", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(10)


def boot_of(instance: dict[str, Any]) -> str:
    """The steps of an instance's boot and their seconds, as its agent reports them."""
    steps = (agent_status(instance) or {}).get("boot", [])
    return " → ".join(f"{step['step']} {_seconds(step)}" for step in steps)


def _seconds(step: dict[str, Any]) -> str:
    if step["ended"] is None:
        return "in progress"
    took = datetime.fromisoformat(step["ended"]) - datetime.fromisoformat(step["started"])
    return f"{took.total_seconds():.1f} s"


def get_json(url: str, token: str | None = None) -> Any:
    """The JSON at a URL; None without a valid answer."""
    text = _text(url, token)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def _text(url: str, token: str | None = None) -> str | None:
    """The text at a URL; None without a 200."""
    try:
        status, body = request_json(url, None, "GET", 3, token=token)
        return body.decode() if status == 200 else None
    except (OSError, ValueError):
        return None


def query(expression: str) -> list[dict[str, Any]]:
    """An instant query of the real Prometheus. Raises DemoError."""
    answer = get_json(f"{PROMETHEUS_URL}/api/v1/query?query={quote(expression)}")
    if answer is None or answer.get("status") != "success":
        raise DemoError(f"Prometheus did not answer {expression!r}: {answer}")
    return answer["data"]["result"]


def slack_messages() -> list[dict[str, Any]]:
    """The messages that arrived in Slack."""
    return get_json(f"{CLOUD.slack_url}/messages", token_of(find_folders(os.environ))) or []


def slack_messages_about(text: str) -> list[dict[str, Any]]:
    """The messages that name an instance."""
    return [one for one in slack_messages() if text in str(one)]


def router_pools(session: Session) -> dict[str, list[dict[str, Any]]]:
    """Servers of each pool, as HAProxy sees them."""
    state = str(session.root / ".local" / "control" / "router")
    known = session.ask("gpufleet", "router", "status", "--state", state, "--json", codes=(0, 3)).json()
    return {pool["name"]: pool["servers"] for pool in known["pools"]}


def ready_servers(session: Session, wanted: Mapping[str, int]) -> Callable[[], str | None]:
    """A condition for `Session.wait`: HAProxy has at least that many servers up in each pool."""

    def look() -> str | None:
        pools = router_pools(session)
        for name, count in wanted.items():
            up = [server for server in pools.get(name, []) if str(server.get("status", "")).upper().startswith("UP")]
            if len(up) < count:
                phases = {
                    one["id"]: (agent_status(one) or {}).get("phase", "no answer yet") for one in instances(name)
                }
                return f"pool {name} has {len(up)} of {count} servers up; instances: {phases}"
        return None

    return look
