"""Measures one pass of the cost watchdog over 5,000 instances, on a ledger with their last 30 days.

`GPUFLEET_BENCH_INSTANCES` sets another size. The simulated cloud and Prometheus respond immediately, so the result
covers reading the responses, processing them, and writing to the ledger. Each run has its own process.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import parse_qs

import httpx

from app.cost_sources import METRIC_NAMES, PrometheusSampleSource
from benchmarks import fleet_ledger as made
from benchmarks.table import Spent, Table, measure
from gpufleet.clouds.samples import PrometheusSamples
from gpufleet.costs.collector import CollectorSources, FleetFacts, PoolFacts, collect
from gpufleet.costs.slots import Measure
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import Cloud, Instance, InstanceState
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass
from gpufleet.ledger.schema import open_ledger
from tests.fixtures import postgres

DAYS = 30
MODELS = 200
EVERY = timedelta(minutes=5)
SCRAPE_S = 10
PASSES = 3


def run() -> Iterator[Table]:
    """Yield results on SQLite and, where it is installed, on PostgreSQL."""
    most = int(os.environ.get("GPUFLEET_BENCH_INSTANCES", "5000"))
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = {"SQLite": f"sqlite:///{folder}/ledger.db"}
        if postgres.binaries() is not None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            urls["PostgreSQL"] = stack.enter_context(postgres.running(place))
        for name, url in urls.items():
            rows += _measured(name, url, most)
    yield Table(
        title=f"Cost watchdog: a pass over {most:,} instances",
        columns=("ledger", "pass", "wall s", "CPU s", "peak memory", "readings", "samples read"),
        rows=tuple(rows),
        notes=(
            f"Limit: 10 s. Five minutes of samples, one every {SCRAPE_S} s, of every engine and GPU; the ledger holds"
            f" {DAYS} days.",
        ),
    )


def _measured(name: str, url: str, instances: int) -> list[tuple[str, ...]]:
    engine = open_ledger(url)
    made.write(engine, days=DAYS, instances=instances, models=MODELS)
    with writing(engine) as connection:
        last = made.until(DAYS)
        facts.add_pass(
            connection,
            CostPass(environment=made.FLEET, at=last, host="x", metrics_from=last - EVERY, metrics_until=last),
        )
    engine.dispose()
    done = subprocess.run(
        [sys.executable, "-m", __name__, url, str(instances)],
        capture_output=True, text=True, timeout=1_800, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    return [(name, *line.split(";")) for line in done.stdout.splitlines()]


class _Cloud:
    """The instances of the generated ledger, all running."""

    def __init__(self, instances: int) -> None:
        self._instances = instances

    def history(self) -> InstanceHistory:
        found = [
            InstanceRecord(
                instance=Instance(
                    id=made.name(n),
                    cloud=Cloud.AWS,
                    region="us-east-1",
                    zone=f"us-east-1{'abcd'[n % 4]}",
                    machine_type=made.MACHINES[n % 3],
                    capacity_type=made.KINDS[n % 4],
                    state=InstanceState.RUNNING,
                    launched_at=made.SINCE,
                    pool=f"pool-{n % MODELS:03}",
                )  # fmt: skip
            )
            for n in range(self._instances)
        ]
        return InstanceHistory(records=found)

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        return ()

    def used_by(self, reservation: str) -> None:
        del reservation

    def paid(self) -> Sequence[PaidCapacity]:
        return ()

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        return [
            Price(sku=f"aws:ec2:{kind}:spot", region="us-east-1", zone=f"us-east-1{zone}",
                        usd_per_hour=Decimal("0.5"), valid_from=until, as_of=until, source="bench")
            for kind in machine_types for zone in "abcd"
        ]  # fmt: skip


class _Store:
    """Responds like Prometheus with every sample of the queried time span."""

    def __init__(self, instances: int) -> None:
        self._instances = instances
        self.samples = 0
        self.took = Spent(wall_s=0, cpu_s=0)
        """The time to create the responses, which is not part of the watchdog's time."""

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        made_up: list[bytes] = []
        spent = measure(lambda: made_up.append(self._made(request.content)))
        self.took = Spent(wall_s=self.took.wall_s + spent.wall_s, cpu_s=self.took.cpu_s + spent.cpu_s)
        return httpx.Response(200, content=made_up[0])

    def _made(self, content: bytes) -> bytes:
        asked = {name: values[0] for name, values in parse_qs(content.decode()).items()}
        end = round(float(asked["time"]))
        span = int(asked["query"].rpartition("[")[2].removesuffix("s]"))
        times = range(end - span + (-(end - span)) % SCRAPE_S, end, SCRAPE_S)
        found: list[object] = []
        for n in range(self._instances):
            for labels, rate in _series(n):
                found.append({"metric": labels, "values": [[at, str(_value(at, rate))] for at in times]})
        self.samples += len(found) * len(times)
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": found}}).encode()


def _series(number: int) -> Iterator[tuple[dict[str, str], int]]:
    names, gpus = METRIC_NAMES, (1, 4, 8)[number % 3]
    whose = {"instance_id": made.name(number), "pool": f"pool-{number % MODELS:03}", "environment": "bench"}
    engine = whose | {"instance": f"10.0.0.1:{8000}", "job": "engine", "model_name": f"m{number % MODELS:03}"}
    rates = {
        names.prompt: 25,
        names.cached: 5,
        names.generation: 8,
        names.prefill_seconds: 1,
        names.decode_seconds: 3,
    }
    for name, rate in rates.items():
        yield {"__name__": name, **engine}, rate
    yield {"__name__": names.process_start, **engine}, 0
    for name in names.requests:
        yield {"__name__": name, **engine}, -2
    for gpu in range(gpus):
        yield {"__name__": names.gpu_active[0], "gpu": str(gpu), "instance": "10.0.0.1:9400", **whose}, -1


def _value(at: int, rate: int) -> float:
    if rate > 0:
        return rate * (at - round(made.SINCE.timestamp()))
    if rate == 0:
        return round(made.SINCE.timestamp()) + 120
    return at // SCRAPE_S % 2 * (0.9 if rate == -1 else 3)


def child(url: str, instances: int) -> None:
    """Run several passes, five minutes apart, and print one line per pass."""
    engine = open_ledger(url)
    cloud, store = _Cloud(instances), _Store(instances)
    samples = PrometheusSampleSource(PrometheusSamples("http://prometheus", store.client()))
    sources = CollectorSources(history=cloud, paid=cloud, market=cloud, samples=samples, names=METRIC_NAMES)
    fleet = FleetFacts(
        name=made.FLEET, environment="bench", machine_types=tuple(made.MACHINES), measure=Measure(), host="bench",
        pools={
            f"pool-{n:03}": PoolFacts(model=f"models/m{n:03}", owner=f"team-{n % 12}") for n in range(MODELS)
        },
    )  # fmt: skip
    for number in range(1, PASSES + 1):
        now = made.until(DAYS) + number * EVERY
        before, took = store.samples, store.took
        done: list[int] = []
        spent = measure(lambda now=now, done=done: done.append(collect(engine, sources, fleet, now).readings))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        read = store.samples - before
        wall, cpu = store.took.wall_s - took.wall_s, store.took.cpu_s - took.cpu_s
        cells = (number, f"{spent.wall_s - wall:.1f}", f"{spent.cpu_s - cpu:.1f}", f"{peak} MB", f"{done[0]:,}")
        print(*cells, f"{read:,}", sep=";")


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]))
