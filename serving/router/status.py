"""The status of a router, as data."""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from serving.router.runtime import ServerStatus
from serving.router.settings import RouterSettings
from serving.router.sources import RouterInputs


def describe(  # noqa: PLR0913
    inputs: RouterInputs,
    shown: Iterable[ServerStatus],
    excluded: frozenset[tuple[str, str]],
    settings: RouterSettings,
    problems: Mapping[str, str],
    reloads: int,
) -> dict[str, Any]:
    """Return the data for `gpufleet router status`."""
    servers = tuple(shown)
    return {
        "version": 1,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "pid": os.getpid(),
        "bind": settings.bind,
        "environment": inputs.topology.environment,
        "reloads": reloads,
        "problems": [text for text in problems.values() if text],
        "models": dict(inputs.topology.models),
        "canaries": {
            name: {"pool": model.canary.pool, "percent": model.canary.percent}
            for name, model in inputs.policy.models.items()
            if model.canary is not None
        },
        "pools": [
            {
                "name": pool.name,
                "model": pool.served_name,
                "adapters": list(pool.adapters),
                "servers": [_server(server, excluded) for server in servers if server.pool == pool.name],
            }
            for pool in inputs.topology.pools
        ],
    }


def _server(server: ServerStatus, excluded: frozenset[tuple[str, str]]) -> dict[str, Any]:
    return {
        "instance": server.name,
        "address": server.address,
        "status": "EXCLUDED" if (server.backend, server.name) in excluded else server.status,
        "agent": server.agent_status,
        "sessions": server.sessions,
        "requests": server.total,
        "errors": server.errors,
    }
