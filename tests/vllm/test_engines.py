"""The engine's interface for watchdogs, reports and the router. Real and simulated vLLM pass the same checks."""

import time
from collections.abc import Iterator

import httpx
import pytest
from localcloud.engine.page import own_name

from localcloud import tiny_model
from serving import metrics
from serving.engines import CONTRACTS
from serving.metrics import MetricKind
from tests.fixtures.vllm.servers import KEY, Server, Streams, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAX_SEQUENCES = 4


@pytest.fixture(scope="module", params=["simulated", "vllm"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "vllm":
        request.getfixturevalue("vllm")
    folder = tmp_path_factory.mktemp(request.param)
    tiny_model.make(folder / "tiny")
    args = ["--max-model-len", "2048", "--max-num-seqs", str(MAX_SEQUENCES), "--kv-cache-memory-bytes", "4M"]
    args += ["--block-size", "32", "--max-num-queued-reqs", "12"]
    environment = {"GPUFLEET_SIM_TOKEN_MS": "4", "VLLM_API_KEY": KEY}
    with serving(request.param, folder / "tiny", folder / "log", *args, environment=environment) as up:
        assert up.complete("warm up").status_code == 200
        yield up


def quiet(server: Server) -> bool:
    return server.value(metrics.REQUESTS_RUNNING) + server.value(metrics.REQUESTS_WAITING) == 0


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        pytest.param(None, 401, id="none"),
        pytest.param("Bearer another", 401, id="another key"),
        pytest.param(f"Basic {KEY}", 401, id="another scheme"),
        pytest.param(KEY, 401, id="no scheme"),
        pytest.param(f"Bearer  {KEY}", 401, id="two spaces"),
        pytest.param(f"bearer {KEY}", 200, id="the scheme in small letters"),
        pytest.param(f"Bearer {KEY}", 200, id="the key"),
    ],
)
def test_inference_endpoints_require_the_key(server: Server, authorization: str | None, status: int) -> None:
    answer = server.complete("hello", authorization)
    assert answer.status_code == status
    if status == 401:
        assert answer.json() == {"error": "Unauthorized"}


def test_without_the_key_only_health_and_metrics_are_open(server: Server) -> None:
    def status(page: str) -> int:
        return httpx.get(f"{server.url}{page}", timeout=30).status_code

    assert {page: status(page) for page in ("/health", "/metrics", "/version")} == {
        "/health": 200, "/metrics": 200, "/version": 200
    }  # fmt: skip
    assert {page: status(page) for page in ("/v1/models", "/v1/nothing", "/nothing")} == {
        "/v1/models": 401, "/v1/nothing": 401, "/nothing": 404
    }  # fmt: skip
    assert KEY not in server.log.read_text()


OF_VLLM = {
    *(series.measures for series in CONTRACTS["vllm"].series),
    *(metric for metric in metrics.ALL.values() if metric.name.startswith("vllm:")),
}
"""The metrics of vLLM that we read."""
NOT_SIMULATED = {("simulated", metrics.PREFILL_TIME), ("simulated", metrics.DECODE_TIME)}
"""Metrics that the simulated engine lacks. Reports then weight by tokens (`gpufleet.costs.figures.Method`)."""


def test_every_metric_that_we_read_is_served_with_its_type(server: Server) -> None:
    text, page = server.text(), server.page()
    for metric in OF_VLLM:
        if (server.kind, metric) in NOT_SIMULATED:
            continue
        name = own_name(metric)
        assert f"# TYPE {name} {metric.kind}" in text, name
        suffix = "_count" if metric.kind is MetricKind.HISTOGRAM else ""
        samples = [sample for sample in page if sample.name == name + suffix]
        assert samples, name
        assert {sample.labels["model_name"] for sample in samples if "model_name" in sample.labels} <= {"tiny"}
        assert all("engine" in s.labels for s in samples if metric is not metrics.ADMISSION_REJECTIONS), name


def test_an_idle_engine_stays_idle(server: Server) -> None:
    until("a quiet engine", lambda: quiet(server))
    counters = [metric for metric in OF_VLLM if metric.kind is MetricKind.COUNTER]
    before = {metric.name: server.value(metric) for metric in counters}
    for _ in range(6):
        time.sleep(0.3)
        gauges = (metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.KV_CACHE_USAGE)
        assert [server.value(gauge) for gauge in gauges] == [0, 0, 0]
    assert {metric.name: server.value(metric) for metric in counters} == before


def test_a_busy_engine_is_detected_and_every_token_is_counted_once(server: Server) -> None:
    until("a quiet engine", lambda: quiet(server))
    totals = (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)
    before = [server.value(metric) for metric in totals]
    finished = server.value(metrics.REQUEST_SUCCESS, finished_reason="length")
    streams = Streams(server.url, count=2 * MAX_SEQUENCES, tokens=400).start()
    until(
        "running and waiting requests",
        lambda: (
            server.value(metrics.REQUESTS_RUNNING) == MAX_SEQUENCES and server.value(metrics.REQUESTS_WAITING) >= 1
        ),
    )
    assert 0 < until("used cache", lambda: server.value(metrics.KV_CACHE_USAGE)) <= 1
    usages = streams.usages()
    assert not streams.errors
    assert [usage["completion_tokens"] for usage in usages] == [400] * 2 * MAX_SEQUENCES
    until("a quiet engine", lambda: quiet(server))
    expected = [sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")]
    assert [server.value(metric) - was for metric, was in zip(totals, before, strict=True)] == expected
    assert server.value(metrics.REQUEST_SUCCESS, finished_reason="length") - finished == 2 * MAX_SEQUENCES
    assert server.value(metrics.KV_CACHE_USAGE) == 0


def test_the_prefix_cache_is_counted_in_tokens_and_included_in_input_tokens(server: Server) -> None:
    until("a quiet engine", lambda: quiet(server))
    # text that no other test uses, in more than one block of 32 tokens
    prompt = " ".join(f"word {number} of a long system prompt" for number in range(30))
    first = server.complete(prompt).json()["usage"]["prompt_tokens"]
    names = (metrics.PREFIX_CACHE_HITS, metrics.PROMPT_TOKENS_CACHED, metrics.PROMPT_TOKENS)
    before = [server.value(metric) for metric in names]
    assert server.complete(prompt).json()["usage"]["prompt_tokens"] == first
    hits, cached, all_input = (server.value(metric) - was for metric, was in zip(names, before, strict=True))
    assert all_input == first
    assert 0 < hits == cached < first
    assert hits % 32 == 0


def test_disconnected_clients_free_their_slots(server: Server) -> None:
    until("a quiet engine", lambda: quiet(server))
    streams = Streams(server.url, count=MAX_SEQUENCES, tokens=1900).start()
    until("first words", streams.all_began)
    streams.hang_up()
    until("a quiet engine", lambda: quiet(server), 20)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        pytest.param({"model": "another"}, 404, id="unknown model"),
        pytest.param({"max_tokens": 5000}, 400, id="longer than the context"),
        pytest.param({"prompt": {}}, 400, id="no prompt"),
    ],
)
def test_bad_requests_get_errors_in_openais_format(server: Server, change: dict[str, object], status: int) -> None:
    answer = server.complete(**{"prompt": "hello", **change})  # pyright: ignore[reportArgumentType]
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_requests_above_the_queue_limit_get_503(server: Server) -> None:
    until("a quiet engine", lambda: quiet(server))
    before = server.value(metrics.ADMISSION_REJECTIONS)
    streams = Streams(server.url, count=40, tokens=800).start()
    streams.join()
    refused = [e for e in streams.errors if getattr(getattr(e, "response", None), "status_code", 0) == 503]
    # simultaneous requests may pass the queue check together; some are refused after their response has started
    late = [e for events in streams.events.values() for e in events if "error" in e]
    assert len(refused) == len(streams.errors)
    rejected = len(refused) + len(late)
    assert (server.value(metrics.ADMISSION_REJECTIONS) - before, len(streams.usages())) == (rejected, 40 - rejected)
    assert rejected > 0
