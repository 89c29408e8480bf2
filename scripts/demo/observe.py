"""What the demo looks at between the commands: the embedded cloud's state, the router's, Prometheus', Slack's."""

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
from scripts.demo.stage import Stage, StoryError

AGENT_PORT: Final = 9500
ENGINE_PORT: Final = 8000
ALIVE: Final = frozenset({"pending", "provisioning", "running", "staging"})
"""In the words of either cloud."""


def instances(pool: str | None = None) -> list[dict[str, Any]]:
    """Living instances as the cloud sees them."""
    found = cloud_client.ask("state")["instances"]
    alive = [one for one in found if one["state"].lower() in ALIVE]
    return [one for one in alive if pool is None or one["pool"] == pool]


def groups(pool: str) -> dict[str, int]:
    """Desired size of each group of a pool."""
    found = cloud_client.ask("state")["groups"]
    # a group is named for its pool; Google's carry no labels that would say so, too
    return {one["name"]: one["desired"] for one in found if one["name"].startswith(f"{pool}-")}


def agent_status(instance: dict[str, Any]) -> dict[str, Any] | None:
    """What the node agent says; None when it does not answer."""
    return get_json(f"http://{instance['address']}:{AGENT_PORT}/status")


def engine_version(instance: dict[str, Any]) -> str | None:
    """What the engine says that it is; None when it does not answer."""
    version: dict[str, Any] = get_json(f"http://{instance['address']}:{ENGINE_PORT}/version") or {}
    return version.get("version")


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
    """The JSON at a URL; None when nobody answers with it."""
    try:
        status, body = request_json(url, None, "GET", 3, token=token)
        return json.loads(body) if status == 200 else None
    except (OSError, ValueError):
        return None


def query(expression: str) -> list[dict[str, Any]]:
    """An instant query of the real Prometheus. Raises StoryError."""
    answer = get_json(f"{PROMETHEUS_URL}/api/v1/query?query={quote(expression)}")
    if answer is None or answer.get("status") != "success":
        raise StoryError(f"Prometheus did not answer {expression!r}: {answer}")
    return answer["data"]["result"]


def slack_messages() -> list[dict[str, Any]]:
    """What arrived in Slack."""
    return get_json(f"{CLOUD.slack_url}/messages", token_of(find_folders(os.environ))) or []


def slack_messages_about(text: str) -> list[dict[str, Any]]:
    """Those that name an instance."""
    return [one for one in slack_messages() if text in str(one)]


def router_pools(stage: Stage) -> dict[str, list[dict[str, Any]]]:
    """Servers of each pool, as HAProxy sees them."""
    state = str(stage.root / ".local" / "control" / "router")
    known = stage.ask("gpufleet", "router", "status", "--state", state, "--json", codes=(0, 3)).json()
    return {pool["name"]: pool["servers"] for pool in known["pools"]}


def ready_servers(stage: Stage, wanted: Mapping[str, int]) -> Callable[[], str | None]:
    """A look for `Stage.wait`: whether HAProxy has at least that many servers up in each pool."""

    def look() -> str | None:
        pools = router_pools(stage)
        for name, count in wanted.items():
            up = [server for server in pools.get(name, []) if str(server.get("status", "")).upper().startswith("UP")]
            if len(up) < count:
                phases = {
                    one["id"]: (agent_status(one) or {}).get("phase", "no answer yet") for one in instances(name)
                }
                return f"pool {name} has {len(up)} of {count} servers up; instances: {phases}"
        return None

    return look
