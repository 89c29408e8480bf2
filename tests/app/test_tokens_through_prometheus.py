"""Pages of two engines, scraped and renamed by a real Prometheus, give the tokens that the engines served."""

import json
import shutil
import time
from collections import defaultdict
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.cost_sources import METRIC_NAMES, PrometheusSampleSource
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs.samples import readings
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.ledger.counters import Tokens, step
from gpufleet.ledger.facts import TokenReading
from hosts.monitoring.prometheus import PrometheusSettings, render, targets
from tests.fixtures.networks import free_network, served
from tests.fixtures.prometheus import running

AT = datetime(2026, 11, 25, tzinfo=UTC)
LABELS = 'engine_type="unified",model_name="chat"'
RANK = 'pp_rank="0",moe_ep_rank="0"'


def _sglang(streamed: int, whole: int, cached: int) -> str:
    lines = [f'sglang:num_running_reqs{{{LABELS},tp_rank="{rank}",{RANK}}} 0' for rank in (0, 1)]
    for value, name in ((streamed, "true"), (whole, "false")):
        if value:
            lines.append(f'sglang:prompt_tokens_total{{{LABELS},is_streaming="{name}"}} {value}')
            lines.append(f'sglang:generation_tokens_total{{{LABELS},is_streaming="{name}"}} {2 * value}')
    lines += [f'sglang:cached_tokens_total{{{LABELS},cache_source="device"}} {cached}'] * bool(cached)
    return "\n".join((*lines, ""))


def _triton(first: int, second: int) -> str:
    return "".join(
        f'nv_llm_{what}_token_len_sum{{model="tensorrt_llm",version="{version}",'
        f'response_metric_type="total_{what}_tokens"}} {value * factor}\n'
        for version, value in (("1", first), ("2", second))
        for what, factor in (("input", 1), ("output", 3))
    )


PAGES = (
    [_sglang(0, 0, 0)] * 3 + [_sglang(0, 40, 0), _sglang(300, 40, 7), _sglang(300, 45, 7)] + [_sglang(301, 45, 9)],
    [_triton(0, 0), _triton(10, 0), _triton(10, 5), _triton(1, 0), _triton(4, 2)],
)
SGLANG, TRITON = (346, 9, 692), (21, None, 63)


def _engine(address: str, pages: list[str]) -> ThreadingHTTPServer:
    """A server that gives the next page at each scrape, and keeps the last one."""
    left = list(pages)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return ThreadingHTTPServer((address, 8000), Page)


def _counted(every: list[TokenReading]) -> dict[str, tuple[int | None, int | None, int | None]]:
    before: dict[tuple[str, str, str], TokenReading] = {}
    total = defaultdict[str, Tokens](Tokens)
    for one in sorted(every, key=lambda reading: reading.at):
        key = one.instance_id, one.engine, one.model
        total[one.instance_id] += step(before.get(key), one)
        before[key] = one
    return {name: (found.prompt, found.cached, found.generation) for name, found in total.items()}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (make setup installs it)")
def test_tokens_of_engines_with_other_labels_are_exact(tmp_path: Path) -> None:
    network = free_network()
    settings = PrometheusSettings(
        cloud=Cloud.AWS,
        environment="prod",
        scrape_interval=timedelta(seconds=1),
        engines=("vllm", "sglang", "triton"),
    )
    addresses = [f"{network}.1.{number}" for number in (1, 2)]
    instances = [
        Instance(
            id=f"i-{number}",
            cloud=Cloud.AWS,
            region="us-east-1",
            zone="us-east-1a",
            state=InstanceState.RUNNING,
            machine_type="g6.xlarge",
            launched_at=AT,
            environment="prod",
            capacity_type=CapacityType.SPOT,
            pool="chat",
            group="chat-a",
            private_address=address,
        )
        for number, address in enumerate(addresses)
    ]
    (tmp_path / "prometheus.yml").write_text(render(settings))
    (tmp_path / "targets.json").write_text(json.dumps(targets(instances, "prod")))
    names = "|".join(METRIC_NAMES.all())
    since = datetime.now(UTC) - timedelta(seconds=1)
    found: dict[str, tuple[int | None, int | None, int | None]] = {}
    with ExitStack() as stack:
        for address, pages in zip(addresses, PAGES, strict=True):
            stack.enter_context(served(_engine(address, pages)))
        url = stack.enter_context(running(tmp_path, f"{network}.0.10:9090"))
        store = stack.enter_context(closing(PrometheusSamples(url)))
        end = time.monotonic() + 60
        while time.monotonic() < end and found != {"i-0": SGLANG, "i-1": TRITON}:
            time.sleep(1)
            series = PrometheusSampleSource(store).samples(f'{{__name__=~"{names}"}}', since, datetime.now(UTC))
            found = _counted(readings("prod", METRIC_NAMES, series))
    assert found == {"i-0": SGLANG, "i-1": TRITON}
