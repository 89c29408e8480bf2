"""LoRA adapters of a pool: from settings to instances and to the fleet document."""

from typing import Any

import pytest

from gpufleet.domain.model import CapacityType
from gpufleet.settings import document
from gpufleet.settings.document import Origin
from serving.instance_settings import from_json, to_json
from serving.router import topology
from stacks import reading
from stacks.document import describe
from stacks.pools import instance_settings
from tests.fixtures.stacks.settings_files import AWS, FLEET, TODAY, changed

SQL = {"name": "chat-sql", "source": "s3://models/chat-sql", "weights_gib": 0.1}
MODELS = [*AWS[FLEET]["models"], SQL]
ORIGIN: Any = {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T00:00:00Z"}


def parsed(**more: Any) -> Any:
    changes = {"models": MODELS, "pools.0.adapters": {"chat-8b:sql": "chat-sql"}, **more}
    return reading.parse(changed(AWS, changes), "file", TODAY)


def written(settings: Any) -> str:
    groups = {pool.name: () for pool in settings.pools}
    return describe(settings, groups, "s3://b", Origin.model_validate(ORIGIN))


def test_an_instance_receives_the_adapters_of_its_pool_only() -> None:
    settings = parsed()
    first, second = (to_json(instance_settings(settings, pool, CapacityType.SPOT)) for pool in settings.pools[:2])
    assert first["adapters"] == {"chat-8b:sql": "models/chat-sql"}
    assert from_json(first).adapters == first["adapters"]
    assert "adapters" not in second, "earlier releases of the agent can read it"


def test_the_router_finds_adapters_and_served_names_in_the_fleet_document() -> None:
    text = written(parsed(**{"pools.1.served_name": "large"}))
    found = topology.from_document(document.parse(text, "there"))
    assert found.models == {"chat-8b": "chat", "chat-8b:sql": "chat", "large": "chat-large"}


def test_a_document_without_adapters_can_be_read_by_earlier_releases() -> None:
    text = written(reading.parse(AWS, "file", TODAY))
    assert "adapters" not in text
    assert "served_name" not in text


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_two_pools_of_one_model_may_serve_the_same_adapter(kind: str) -> None:
    adapters = {"chat-8b:sql": "chat-sql"}
    changes = {f"pools.{n}.{key}": value for n in (0, 1) for key, value in (
        ("adapters", adapters), ("engine.kind", kind), ("engine.args", []), ("model", "chat-8b"))}  # fmt: skip
    assert [pool.adapters for pool in parsed(**changes).pools[:2]] == [adapters, adapters]
