"""LoRA adapters behind real HAProxy: requests for an adapter reach its pool, and its tokens are counted apart."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from localcloud.engine.api import EngineServer
from localcloud.engine.arguments import parse
from localcloud.engine.batch import Batch
from localcloud.engine.loading import load

from app.cost_sources import METRIC_NAMES
from gpufleet.costs.adapters import adapter_shares
from gpufleet.costs.allocation import UseState
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.figures import Figure
from gpufleet.costs.samples import RawSeries, team_readings
from gpufleet.costs.slots import ActivitySample
from gpufleet.costs.teams import TokenBasis, shown_usd
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.teams import TeamTotals
from localcloud import tiny_model
from serving.exposition import parse as parse_page
from serving.router.exporter import RouterSnapshot, metrics
from serving.router.keys import ApiKey, digest
from tests.fixtures.router.router import Router, document, running
from tests.fixtures.small_fleet import T0

ADAPTERS = {"chat:sql": "models/chat-sql", "chat:tax": "models/chat-tax"}
NAMES = ("chat", *ADAPTERS)
KEY = ApiKey(sha256=digest("sk-bound"), name="bound", models=("chat:sql",))
USD = 100


@contextmanager
def serving(folder: Path) -> Iterator[Router]:
    """Run a router, and one pool of two simulated engines with adapters."""
    tiny_model.make(folder / "model")
    for name in ADAPTERS:
        tiny_model.make_adapter(folder / name)
    with running(folder / "router") as made, ExitStack() as stack:
        made.fleet.written = document(
            {"name": "chat", "model": "models/chat-8b", "served_name": "chat", "adapters": ADAPTERS},
            {"name": "other", "model": "models/other"},
        )
        made.fleet.clients = (KEY,)
        for name in ("i-1", "i-2"):
            engine = _engine(made, name, folder)
            stack.callback(engine.server_close)
            stack.callback(engine.shutdown)
        made.ready()
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router that the tests share: usage records of earlier requests may still arrive."""
    with serving(tmp_path_factory.mktemp("adapters")) as made:
        yield made


def _engine(router: Router, name: str, folder: Path) -> EngineServer:
    """Start a simulated engine at a replica's address; of the mock replica there, only the agent is used."""
    address = router.add(name, engine_port=8001).address
    modules = [f"{adapter}={folder / adapter}" for adapter in ADAPTERS]
    arguments = ["serve", str(folder / "model"), "--served-model-name", "chat", "--host", address]
    settings = parse([*arguments, "--enable-lora", "--lora-modules", *modules])
    engine = EngineServer(settings)
    engine.batch = Batch(settings, load(settings.model))
    engine.server_bind()
    engine.server_activate()
    threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return engine


def complete(router: Router, model: str, number: int = 0, **more: str) -> httpx.Response:
    body = {"model": model, "prompt": f"question {number} " + "word " * (number % 7), "max_tokens": 2 + number % 5}
    return router.client.post(f"{router.url}/v1/completions", json=body | {"ignore_eos": True}, headers=more)


def recorded(router: Router) -> dict[str, tuple[int, int]]:
    """Tokens in and out by requested model, from the router's usage records."""
    found: Counter[str] = Counter()
    for (_, model, pool), use in router.controller.meter.use.items():
        assert pool in ("chat", "")
        found[f"{model}/in"] += use.tokens_in
        found[f"{model}/out"] += use.tokens_out
    return {model: (found[f"{model}/in"], found[f"{model}/out"]) for model in NAMES}


def readings_of(router: Router, hours: float) -> list[RawSeries]:
    """The router's metrics page, as Prometheus would store it."""
    page = metrics(router.controller.meter, RouterSnapshot(held={}, ready={}, known={}, excluded={}))
    return [
        RawSeries(
            {"__name__": sample.name, "job": "router", "instance": "r1", **sample.labels},
            [ActivitySample(T0 + timedelta(hours=hours), sample.value)],
        )
        for sample in parse_page(page)
        if sample.name in METRIC_NAMES.teams
    ]


@pytest.fixture
def unused(tmp_path: Path) -> Iterator[Router]:
    """A router without earlier requests."""
    with serving(tmp_path) as made:
        yield made


def test_tokens_of_each_adapter_are_those_that_clients_counted_and_costs_add_up(unused: Router) -> None:
    """Sixty requests for a model and two adapters through the router, and the cost of their pool by adapter."""
    asked = [NAMES[number % 3] for number in range(60)]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda pair: complete(unused, pair[1], pair[0]), enumerate(asked)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-gpufleet-replica"] for answer in answers} == {"i-1", "i-2"}
    counted: Counter[str] = Counter()
    for model, answer in zip(asked, answers, strict=True):
        assert answer.json()["model"] == model
        counted[f"{model}/in"] += answer.json()["usage"]["prompt_tokens"]
        counted[f"{model}/out"] += answer.json()["usage"]["completion_tokens"]
    expected = {name: (counted[f"{name}/in"], counted[f"{name}/out"]) for name in NAMES}
    unused.until(lambda: recorded(unused) == expected, "the router's usage records")

    totals = TeamTotals(T0)
    zero = [RawSeries(s.labels, [ActivitySample(T0 - timedelta(hours=1), 0)]) for s in readings_of(unused, -1)]
    for reading in team_readings("f", METRIC_NAMES, zero) + team_readings("f", METRIC_NAMES, readings_of(unused, 1)):
        totals.take(reading)
    whole = Figure(
        tokens=Tokens(
            prompt=sum(counted[f"{name}/in"] for name in NAMES),
            generation=sum(counted[f"{name}/out"] for name in NAMES),
        )
    )
    whole.amounts[UseState.USED] = Decimal(USD * 3600)
    shares, notes = adapter_shares({"chat": whole}, totals.uses, [DeclaredCosts(adapters={"chat": list(ADAPTERS)})])
    assert not notes
    assert {share.counted for share in shares} == {TokenBasis.EXACT}
    assert {s.name: (s.figure.tokens.prompt, s.figure.tokens.generation) for s in shares} == {
        name: (counted[f"{name}/in"], counted[f"{name}/out"]) for name in NAMES
    }
    costs = shown_usd(shares)
    assert sum(costs) == USD
    assert min(costs) > 0


def test_the_router_lists_adapters_as_models(served: Router) -> None:
    listed = httpx.get(f"{served.url}/v1/models", timeout=30).json()["data"]
    assert [card["id"] for card in listed] == ["chat", "other", *ADAPTERS]


def test_an_adapter_that_no_pool_serves_is_not_found(served: Router) -> None:
    answer = complete(served, "chat:none")
    assert answer.status_code == 404
    assert "Models: chat, other, chat:sql, chat:tax" in json.dumps(answer.json())


def test_clients_cannot_load_adapters_into_an_engine(served: Router) -> None:
    for page in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"):
        assert httpx.post(f"{served.url}{page}", json={"model": "chat"}, timeout=30).status_code == 404


@pytest.mark.parametrize(("model", "status"), [("chat:sql", 200), ("chat", 403), ("chat:tax", 403)])
def test_a_key_can_be_limited_to_an_adapter(served: Router, model: str, status: int) -> None:
    assert complete(served, model, authorization="Bearer sk-bound").status_code == status


def test_the_status_of_the_router_lists_the_adapters_of_a_pool(served: Router) -> None:
    pools = json.loads(json.dumps(served.controller.describe()))["pools"]
    assert [pool["adapters"] for pool in pools] == [list(ADAPTERS), []]
