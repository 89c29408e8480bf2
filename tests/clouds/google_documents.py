"""Fleet documents for the adapters of Google Cloud."""

import json
from typing import Any

from gpufleet.settings.document import FleetDocument, parse

REGION = "us-central1"


def entry(name: str, kind: str = "spot", zone: str | None = "us-central1-a") -> dict[str, Any]:
    """A group of one machine type; without a zone it is regional."""
    plain = {"type": kind, "name": name, "max": 3, "machine_types": ["g2-standard-8"]}
    return plain if zone is None else {**plain, "zone": zone}


def document(*groups: dict[str, Any]) -> FleetDocument:
    """A fleet of one pool with these groups."""
    pool: dict[str, Any] = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "o", "target": 1, "min": 0, "max": 4,
        "drain_deadline": "20s", "watchdogs": {}, "groups": list(groups),
    }  # fmt: skip
    whole = {
        "version": 1, "environment": "test", "cloud": "gcp", "region": REGION, "account": "p",
        "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T00:00:00Z"},
        "bucket": "gs://b", "prometheus_url": "http://127.0.0.1:1", "ledger_url": "sqlite:///x.db",
        "router": {"url": "http://127.0.0.1:1"}, "pools": [pool],
    }  # fmt: skip
    return parse(json.dumps(whole), "the test")
