"""Real vLLM and real SGLang in one fleet of the embedded cloud: boot, keys, requests through the router, drains, idle
stops and the report, on the CPU.
"""

import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest
from localcloud.engine_environment import SGLANG, VLLM
from localcloud.tiny_model import TinyModelShape

from tests.fixtures.e2e import engine_scenario as scenario
from tests.fixtures.e2e.clients import Usage, ask
from tests.fixtures.e2e.engine_fleet import EngineFleet, EnginePool, running
from tests.fixtures.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engines,
    pytest.mark.timeout(4800),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
NETWORK = free_network()
CONTEXT: Final = 8192
"""Long enough for a stream that outlasts the start of a drain."""
BOOT_LIMIT: Final = timedelta(minutes=40)
"""Four engines start at the same time on two cores, which other programs may use, too."""
DRAIN_DEADLINE: Final = timedelta(minutes=15)
WINDOW: Final = timedelta(minutes=1)
SCRAPE_INTERVAL: Final = timedelta(seconds=5)
"""Also the limit of a scrape: an engine that uses both cores answers in more than a second."""
POOLS: Final = (
    EnginePool(
        name="chat",
        kind="vllm",
        image=f"gpu-fleet/vllm-cpu@sha256:{'0' * 64}",
        release=VLLM.version,
        args=("--max-model-len", str(CONTEXT), "--max-num-seqs", "4"),
        boot_limit=BOOT_LIMIT,
        drain_deadline=DRAIN_DEADLINE,
        window=WINDOW,
    ),
    EnginePool(
        name="code",
        kind="sglang",
        image=f"gpu-fleet/sglang-cpu@sha256:{'0' * 64}",
        release=SGLANG.version,
        args=("--context-length", str(CONTEXT), "--max-running-requests", "4"),
        boot_limit=BOOT_LIMIT,
        drain_deadline=DRAIN_DEADLINE,
        window=WINDOW,
    ),
)
LIMIT_S: Final = 300
STREAM_S: Final = 60
"""Time of a stream that must outlast the start of a drain, or a pass of a watchdog."""
NAMES: Final = tuple(pool.name for pool in POOLS)


@pytest.fixture(scope="module")
def fleet(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineFleet]:
    shape = TinyModelShape(context=CONTEXT)
    folder = tmp_path_factory.mktemp("real")
    with running(folder, NETWORK, POOLS, shape=shape, scrape_interval=SCRAPE_INTERVAL) as made:
        yield made


def test_real_engines_boot_serve_drain_stop_when_idle_and_are_charged(fleet: EngineFleet) -> None:
    """One scenario: each part needs the state that the part before it leaves."""
    scenario.agents_identify_their_engines(fleet)
    scenario.engines_require_their_key(fleet)
    warm_ups = scenario.counted_at_boot(fleet, POOLS)
    fleet.run("watch", "cost", codes=(0, 1))
    counted = scenario.requests_reach_their_pool(fleet, NAMES, limit_s=LIMIT_S)
    timed, tokens = _tokens_of_a_long_stream(fleet)
    drained = scenario.drains_complete_their_streams(fleet, tokens, limit_s=LIMIT_S)
    busy = scenario.busy_instances_are_kept(fleet, tokens, limit_s=LIMIT_S)
    scenario.idle_instances_are_terminated(fleet, NAMES, limit_s=2 * LIMIT_S)
    fleet.run("watch", "cost", codes=(0, 1))
    received = {name: counted[name] + timed[name] + drained[name] + busy[name] for name in NAMES}
    scenario.report_charges_the_tokens_that_clients_received(fleet, received, warm_ups)


def _tokens_of_a_long_stream(fleet: EngineFleet) -> tuple[dict[str, Usage], dict[str, int]]:
    """Time a stream of each pool. Return its tokens, and how many tokens a stream of `STREAM_S` has."""
    usages: dict[str, Usage] = {}
    tokens: dict[str, int] = {}
    for name in NAMES:
        began = time.monotonic()
        usages[name] = ask(fleet.router_url, name, "how fast are you", 100, stream=True, limit_s=LIMIT_S)
        tokens[name] = min(CONTEXT - 500, round(100 * STREAM_S / (time.monotonic() - began)))
    return usages, tokens
