"""LoRA adapters: real and simulated vLLM, started with the arguments of its contract, give the same answers."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import httpx
import pytest

from localcloud import tiny_model
from serving import metrics
from serving.engines import launch as launches
from serving.engines.vllm import LAUNCH
from tests.fixtures.vllm.servers import KEY, Server, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ADAPTERS = ("tiny:sql", "tax")
PROMPT = "the quick brown fox"


@pytest.fixture(scope="module", params=["simulated", "vllm"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "vllm":
        request.getfixturevalue("vllm")
    folder = tmp_path_factory.mktemp(request.param)
    tiny_model.make(folder / "tiny")
    for seed, name in enumerate(ADAPTERS):
        tiny_model.make_adapter(folder / name, seed=seed)
    described = launches.EngineServer(
        model_path=PurePosixPath(folder / "tiny"),
        served_name="tiny",
        host="",
        port=0,
        shutdown_timeout_s=1,
        adapters={name: PurePosixPath(folder / name) for name in ADAPTERS},
    )
    arguments = LAUNCH.arguments(described)
    lora = arguments[arguments.index("--enable-lora") :]
    args = ["--max-model-len", "2048", "--kv-cache-memory-bytes", "4M", "--block-size", "32", *lora]
    with serving(request.param, folder / "tiny", folder / "log", *args, environment={"VLLM_API_KEY": KEY}) as up:
        yield up


def answer(server: Server, model: str) -> dict[str, Any]:
    done = server.complete(PROMPT, model=model, temperature=0)
    assert done.status_code == 200, done.text
    return done.json()


def test_adapters_are_listed_with_their_model(server: Server) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    cards = httpx.get(f"{server.url}/v1/models", headers=headers, timeout=60).json()["data"]
    assert [(card["id"], card.get("parent")) for card in cards] == [
        ("tiny", None), *((name, "tiny") for name in ADAPTERS)
    ]  # fmt: skip


def test_each_adapter_answers_requests_and_reports_their_tokens(server: Server) -> None:
    usages = [answer(server, model)["usage"] for model in ("tiny", *ADAPTERS)]
    assert len({usage["prompt_tokens"] for usage in usages}) == 1
    assert {usage["completion_tokens"] for usage in usages} == {8}


def test_each_adapter_of_real_vllm_changes_the_answer(server: Server) -> None:
    texts = {answer(server, model)["choices"][0]["text"] for model in ("tiny", *ADAPTERS)}
    assert len(texts) == 3 or server.kind == "simulated", texts


def test_an_unknown_adapter_is_not_found(server: Server) -> None:
    assert server.complete(PROMPT, model="tiny:none").status_code == 404


def test_the_engine_counts_tokens_of_adapters_under_its_model(server: Server) -> None:
    """So the router's records are the only source of tokens by adapter."""
    before = server.value(metrics.GENERATION_TOKENS, model_name="tiny")
    answer(server, ADAPTERS[0])
    until("counted tokens", lambda: server.value(metrics.GENERATION_TOKENS, model_name="tiny") == before + 8)


def test_clients_cannot_load_adapters(server: Server) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"lora_name": "x", "lora_path": "/tmp/x"}  # noqa: S108 - never read
    done = httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, headers=headers, timeout=60)
    assert done.status_code == 404
