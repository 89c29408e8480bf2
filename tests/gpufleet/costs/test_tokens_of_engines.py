"""Tokens of each engine, from its page under canonical names to the sum in the report, equal those that it served."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from app.cost_sources import METRIC_NAMES
from gpufleet.costs.samples import RawSeries, readings
from gpufleet.costs.slots import ActivitySample
from gpufleet.ledger.counters import Tokens, step
from gpufleet.ledger.facts import TokenReading
from serving.engines import CONTRACTS
from serving.engines.reading import relabelling
from tests.fixtures.relabelling import relabelled

T0: Final = datetime(2026, 11, 21, 6, tzinfo=UTC)
SCRAPE: Final = timedelta(seconds=10)
TARGET: Final = {"instance_id": "i-1", "instance": "10.0.0.1:8000", "job": "engine", "pool": "chat"}


@dataclass(frozen=True, kw_only=True)
class Served:
    """Tokens that one process of an engine has served, by part of its page."""

    prompt: Sequence[int] = (0, 0)
    cached: Sequence[int] = (0, 0)
    generation: Sequence[int] = (0, 0)

    @property
    def total(self) -> tuple[int, int, int]:
        return sum(self.prompt), sum(self.cached), sum(self.generation)


def _vllm(served: Served) -> str:
    lines = ["process_start_time_seconds 1795000000"]
    for rank in (0, 1):
        own = f'{{engine="{rank}",model_name="chat"}}'
        lines += [
            f"vllm:num_requests_running{own} 0",
            f"vllm:num_requests_waiting{own} 0",
            f"vllm:prompt_tokens_total{own} {served.prompt[rank]}",
            f"vllm:prompt_tokens_cached_total{own} {served.cached[rank]}",
            f"vllm:generation_tokens_total{own} {served.generation[rank]}",
        ]
    return "\n".join((*lines, ""))


def _sglang(served: Served) -> str:
    """Streamed requests are the second part. Every tensor-parallel rank repeats the numbers of the scheduler."""
    labels = 'engine_type="unified",model_name="chat"'
    lines: list[str] = []
    for rank in (0, 1):
        own = f'{{{labels},tp_rank="{rank}",pp_rank="0",moe_ep_rank="0",dp_rank="0"}}'
        lines += [f"sglang:num_running_reqs{own} 0", f"sglang:num_queue_reqs{own} 0"]
        lines += [f'sglang:realtime_tokens_total{{{labels},mode="decode",tp_rank="{rank}"}} {sum(served.generation)}']
    for part, streamed in enumerate(("false", "true")):
        own = f'{{{labels},is_streaming="{streamed}"}}'
        if served.prompt[part]:  # a labelled counter exists from its first request
            lines.append(f"sglang:prompt_tokens_total{own} {served.prompt[part]}")
            lines.append(f"sglang:generation_tokens_total{own} {served.generation[part]}")
    for part, source in enumerate(("device", "host")):
        if served.cached[part]:
            lines.append(f'sglang:cached_tokens_total{{{labels},cache_source="{source}"}} {served.cached[part]}')
    return "\n".join((*lines, ""))


def _trtllm(served: Served) -> str:
    own = '{engine_type="pytorch",model_name="chat"}'
    lines = [f"trtllm_num_requests_running{own} 0", f"trtllm_num_requests_waiting{own} 0"]
    prompt, cached, generation = served.total
    if prompt:
        lines += [
            f"trtllm_prompt_tokens_total{own} {prompt}",
            f"trtllm_prompt_cached_tokens_total{own} {cached}",
            f"trtllm_generation_tokens_total{own} {generation}",
        ]
    return "\n".join((*lines, ""))


def _triton(served: Served) -> str:
    """Two versions of a model. Its ensemble counts the same requests under another name."""
    lines: list[str] = []
    for part, version in enumerate(("1", "2")):
        own = f'model="tensorrt_llm",version="{version}"'
        tokens = (("input", served.prompt[part]), ("output", served.generation[part]))
        for what, count in tokens:
            total = f'response_metric_type="total_{what}_tokens"'
            lines += [
                f"nv_llm_{what}_token_len_sum{{{own},{total}}} {count}",
                f"nv_llm_{what}_token_len_count{{{own},{total}}} 7",
            ]
        lines.append(f'nv_trt_llm_request_metrics{{{own},request_type="active"}} 0')
        lines.append(f'nv_trt_llm_request_metrics{{{own},request_type="waiting"}} 0')
    lines.append('nv_inference_exec_count{model="ensemble",version="1"} 99')
    return "\n".join((*lines, ""))


def _lmdeploy(served: Served) -> str:
    lines: list[str] = []
    for rank in (0, 1):
        own = f'{{engine="{rank}",model_name="chat"}}'
        lines += [
            f"lmdeploy:num_requests_running{own} 0",
            f"lmdeploy:num_requests_waiting{own} 0",
            f"lmdeploy:num_api_requests_waiting{own} 0",
            f"lmdeploy:prompt_tokens_total{own} {served.prompt[rank]}",
            f"lmdeploy:cached_tokens_total{own} {served.cached[rank]}",
            f"lmdeploy:generation_tokens_total{own} {served.generation[rank]}",
        ]
    return "\n".join((*lines, ""))


def _dynamo(served: Served) -> str:
    """Two models. The workers behind the frontend count the same tokens under other names."""
    lines: list[str] = []
    for part, model in enumerate(("chat", "code")):
        own = f'{{model="{model}"}}'
        lines += [f"dynamo_frontend_inflight_requests{own} 0", f"dynamo_frontend_queued_requests{own} 0"]
        if served.prompt[part]:
            lines += [
                f"dynamo_frontend_input_sequence_tokens_sum{own} {served.prompt[part]}",
                f"dynamo_frontend_cached_tokens_sum{own} {served.cached[part]}",
                f"dynamo_frontend_output_tokens_total{own} {served.generation[part]}",
                f"dynamo_frontend_output_sequence_tokens_sum{own} {served.generation[part]}",
            ]
    return "\n".join((*lines, ""))


def _tgi(served: Served) -> str:
    prompt, _, generation = served.total
    lines = ["tgi_batch_current_size 0", "tgi_queue_size 0"]
    if prompt:
        lines += [f"tgi_request_input_length_sum {prompt}", f"tgi_request_generated_tokens_sum {generation}"]
    return "\n".join((*lines, ""))


PAGES: Final[Mapping[str, Callable[[Served], str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "triton": _triton,
    "lmdeploy": _lmdeploy,
    "dynamo": _dynamo,
    "tgi": _tgi,
}
WITHOUT_CACHED: Final = ("triton", "tgi")


def scraped(kind: str, pages: Sequence[tuple[datetime, str]], labels: Mapping[str, str] = TARGET) -> list[RawSeries]:
    """The raw samples of a metrics store that scraped these pages."""
    rules = relabelling([CONTRACTS[kind]])
    found: dict[tuple[tuple[str, str], ...], list[ActivitySample]] = {}
    for at, page in pages:
        for sample in relabelled(page, rules):
            series = tuple(sorted({**sample.labels, **labels, "__name__": sample.name}.items()))
            found.setdefault(series, []).append(ActivitySample(at, sample.value))
    wanted = set(METRIC_NAMES.all())
    return [
        RawSeries(dict(series), samples) for series, samples in found.items() if dict(series)["__name__"] in wanted
    ]


def counted(every: Sequence[TokenReading]) -> Tokens:
    """The tokens of all engines of the readings, as the ledger adds them up."""
    before: dict[tuple[str, str, str], TokenReading] = {}
    total = Tokens()
    for one in sorted(every, key=lambda reading: reading.at):
        key = one.instance_id, one.engine, one.model
        total += step(before.get(key), one)
        before[key] = one
    return total


def assert_counted(kind: str, found: Tokens, truth: tuple[int, int, int]) -> None:
    prompt, cached, generation = truth
    expected_cached = None if kind in WITHOUT_CACHED else cached
    assert (found.prompt, found.cached, found.generation) == (prompt, expected_cached, generation)


@dataclass(kw_only=True)
class EngineRun:
    """An engine that serves requests, restarts, and is not always scraped."""

    seed: int
    truth: list[Served] = field(default_factory=list[Served])
    """Each process at its last scrape."""
    starts: list[datetime] = field(default_factory=list[datetime])

    def pages(self, page: Callable[[Served], str]) -> Iterator[tuple[datetime, str]]:
        dice = Random(self.seed)
        at = T0
        for _ in range(dice.randint(1, 4)):
            now, last = Served(), Served()
            self.starts.append(at - 4 * SCRAPE)
            for number in range(dice.randint(5, 40)):
                at += SCRAPE
                if number > 3 and dice.random() < 0.5:
                    now = self._after_request(now, dice, large=number == 4)
                if number < 3 or dice.random() < 0.85:
                    last = now
                    yield at, page(now)
            self.truth.append(last)
            at += 6 * SCRAPE  # the process starts, without a page

    def _after_request(self, now: Served, dice: Random, *, large: bool) -> Served:
        part = dice.randint(0, 1)

        def plus(values: Sequence[int], most: int) -> tuple[int, ...]:
            return tuple(value + (dice.randint(1, most) if n == part else 0) for n, value in enumerate(values))

        return replace(
            now,
            prompt=plus(now.prompt, 900 if large else 90),
            cached=plus(now.cached, 9),
            generation=plus(now.generation, 500),
        )

    def agent(self) -> RawSeries:
        """The start of the engine's process, which its node agent reports."""
        labels = {**TARGET, "__name__": METRIC_NAMES.engine_start, "instance": "10.0.0.1:9500", "job": "node"}
        samples = [ActivitySample(at + n * SCRAPE, at.timestamp()) for at in self.starts for n in (1, 2)]
        return RawSeries(labels, samples)

    @property
    def total(self) -> tuple[int, int, int]:
        prompt, cached, generation = zip(*(one.total for one in self.truth), strict=True)
        return sum(prompt), sum(cached), sum(generation)


@pytest.mark.parametrize("kind", PAGES)
def test_requests_of_a_running_engine_are_counted_from_its_first_one(kind: str) -> None:
    page = PAGES[kind]
    steps = [Served(), Served(), Served(prompt=(30, 0), cached=(4, 0), generation=(9, 0))]
    steps.append(Served(prompt=(30, 500), cached=(4, 64), generation=(9, 70)))
    pages = [(T0 + n * SCRAPE, page(served)) for n, served in enumerate(steps)]
    assert_counted(kind, counted(readings("f", METRIC_NAMES, scraped(kind, pages))), (530, 68, 79))


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("seed", [3, 23, 30, 35, 44, 85, 103, *range(200, 213)])
def test_restarts_and_missed_scrapes_lose_only_what_no_page_showed(kind: str, seed: int) -> None:
    run = EngineRun(seed=seed)
    pages = list(run.pages(PAGES[kind]))
    found = counted(readings("f", METRIC_NAMES, [*scraped(kind, pages), run.agent()]))
    prompt, cached, generation = run.total
    assert (found.prompt or 0, found.generation or 0) == (prompt, generation)
    assert kind in WITHOUT_CACHED or (found.cached or 0) == cached


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(
    "copy",
    [
        pytest.param({"job": "again"}, id="a second job"),
        pytest.param({"replica": "b"}, id="a second store"),
        pytest.param({"instance": "store:9090", "exported_instance": "10.0.0.1:8000"}, id="federation"),
    ],
)
def test_copies_of_an_engine_are_counted_once(kind: str, copy: Mapping[str, str]) -> None:
    run = EngineRun(seed=3)
    pages = list(run.pages(PAGES[kind]))
    late = [(at + timedelta(seconds=3), page) for at, page in pages]
    every = [*scraped(kind, pages), *scraped(kind, late, {**TARGET, **copy})]
    once = counted(readings("f", METRIC_NAMES, scraped(kind, pages)))
    assert counted(readings("f", METRIC_NAMES, every)) == once


@pytest.mark.parametrize("kind", PAGES)
def test_an_engine_that_served_nothing_is_ready_from_its_first_page(kind: str) -> None:
    pages = [(T0 + n * SCRAPE, PAGES[kind](Served())) for n in range(5)]
    found = readings("f", METRIC_NAMES, scraped(kind, pages))
    assert min(one.at for one in found) == T0
    assert not counted(found).total
    assert counted(found).unknown_before == 0


def test_a_recorded_page_of_sglang_is_counted_like_its_contract_reads_it() -> None:
    folder = Path("tests/recorded/engines")
    names = ("sglang-0.5.23-cpu", "sglang-0.5.23-cpu-busy")
    idle, busy = ((folder / f"{name}.prom").read_text() for name in names)
    quiet = "".join(line for line in idle.splitlines(keepends=True) if "tokens_total{" not in line)
    pages = [(T0, quiet), (T0 + SCRAPE, quiet), (T0 + 2 * SCRAPE, busy)]
    found = counted(readings("f", METRIC_NAMES, scraped("sglang", pages)))
    assert (found.prompt, found.cached, found.generation) == (85, 36, 68)


def test_a_counter_that_a_store_misses_at_one_scrape_has_not_restarted() -> None:
    """A store that mixes the samples of two others may give a gauge before the counter."""
    pages = [(T0 + n * SCRAPE, _vllm(Served(prompt=(1000 + n, 0)))) for n in range(1, 5)]
    gauge = [line for line in pages[0][1].splitlines() if "num_requests" in line]
    mixed = [(T0, "\n".join((*gauge, ""))), *pages]
    assert counted(readings("f", METRIC_NAMES, scraped("vllm", mixed))).prompt == 3


@pytest.mark.parametrize("kind", [kind for kind in PAGES if kind != "vllm"])  # its page states its start
@pytest.mark.parametrize(
    ("start", "prompts", "counted_prompts"),
    [
        pytest.param(-0.2, [0, 1, 1, 1], 1, id="it counts within a second of its start"),
        pytest.param(1.5, [480, 490, 500, 7, 9], 29, id="a clock shows the process before it too late"),
        pytest.param(2.5, [480, 490, 500, 7, 9], 29, id="equal clocks"),
        pytest.param(2.5, [1, 2, 3, 7, 9], 11, id="it counts more than the process before it"),
    ],
)
def test_tokens_near_the_start_of_a_process_are_counted_once(
    kind: str, start: float, prompts: Sequence[int], counted_prompts: int
) -> None:
    second = timedelta(seconds=1)
    pages = [(T0 + n * second, PAGES[kind](Served(prompt=(count, 0)))) for n, count in enumerate(prompts)]
    labels = {**TARGET, "__name__": METRIC_NAMES.engine_start, "instance": "10.0.0.1:9500", "job": "node"}
    agent = RawSeries(labels, [ActivitySample(T0 + 5 * second, (T0 + start * second).timestamp())])
    assert counted(readings("f", METRIC_NAMES, [*scraped(kind, pages), agent])).prompt == counted_prompts
