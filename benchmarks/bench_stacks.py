"""Measures the program's part of a preview (imports, settings, registrations), its growth with pools, and
`plan-cost`.

The engine's responses are mocked, so the figures cover the program alone. Each run has its own process.
"""

import copy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from benchmarks.table import Table, measure
from gpufleet.prices.plan.cost import plan_cost
from gpufleet.prices.plan.preview import parse
from gpufleet.prices.plan.rates import rates_of

ROOT = Path(__file__).parents[1]
STACKS = ("aws-prod", "gcp-prod")
POOLS = (10, 30, 50)
ROUNDS = 3
LIMIT_S = 300

_PROGRAM = """
import json, resource, sys, time
began = time.perf_counter()
import runpy
from pathlib import Path
import pulumi, yaml
steps = []
class Answers(pulumi.runtime.Mocks):
    made = 0
    def new_resource(self, args):
        Answers.made += 1
        urn = f"urn:pulumi:{sys.argv[1]}::gpu-fleet::{args.typ}::{args.name}"
        steps.append({"op": "create", "urn": urn, "newState": {"urn": urn, "type": args.typ, "inputs": args.inputs}})
        named = {"arn": f"arn:{args.name}", "url": f"https://{args.name}", "name": args.name}
        return f"{args.name}-id", {**named, **args.inputs}
    def call(self, args):
        return {}
path = Path(sys.argv[1])
pulumi.runtime.set_mocks(Answers(), project="gpu-fleet", stack=path.stem.removeprefix("Pulumi."), preview=True)
config = yaml.safe_load(path.read_text())["config"]
plain = {k: v if isinstance(v, str) else json.dumps(v) for k, v in config.items()}
pulumi.runtime.set_all_config(plain)
@pulumi.runtime.test
def program():
    runpy.run_path("stacks", run_name="__main__")
program()
Path(sys.argv[2]).write_text(json.dumps({"config": plain, "steps": steps}, default=str))
used = resource.getrusage(resource.RUSAGE_SELF)
print(time.perf_counter() - began, used.ru_utime + used.ru_stime, Answers.made, used.ru_maxrss // 1024)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Results of one run of the program. Growth is based on CPU time, which the load of the machine does not
    affect.
    """

    wall_s: float
    cpu_s: float
    resources: int
    mebibytes: int


def run() -> Iterator[Table]:
    """Yield the shipped prod stacks, then aws-prod with increasing numbers of pools."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [(stack, *_cells(_program(_written(Path(folder), stack, None)))) for stack in STACKS]
        yield Table(
            title="Program part of `pulumi preview`",
            columns=("stack", "seconds", "CPU seconds", "resources", "peak memory"),
            rows=tuple(rows),
            notes=("Limit: 3 s each on 2 cores. Imports of pulumi-aws and pulumi-gcp are in it.",),
        )
        grown: dict[int, Took] = {}
        priced: list[tuple[str, ...]] = []
        for pools in POOLS:
            path = _written(Path(folder), "aws-prod", pools)
            grown[pools] = _program(path)
            priced.append(_priced(pools, path.with_suffix(".json").read_bytes()))
    first, last = POOLS[0], POOLS[-1]
    added = (grown[last].cpu_s - grown[first].cpu_s) / (last - first)
    yield Table(
        title="aws-prod with more pools",
        columns=("pools", "seconds", "CPU seconds", "resources", "peak memory"),
        rows=tuple((str(pools), *_cells(took)) for pools, took in grown.items()),
        notes=(f"{added * 1000:.0f} ms for each pool more, between {first} and {last}: the growth is linear.",)
        if _linear(grown)
        else ("The growth is NOT linear.",),
    )

    yield Table(
        title="`plan-cost` after the preview",
        columns=("pools", "seconds", "CPU seconds", "USD a month"),
        rows=tuple(priced),
        notes=(
            "Limit: 1 s at 50 pools. Reading the preview, the price book and every rate is in it, imports are not.",
        ),
    )


def _priced(pools: int, preview: bytes) -> tuple[str, ...]:
    """Return the cost of a plan, and the duration of its calculation."""
    months: list[Decimal] = []

    def price() -> None:
        plan = parse(preview)
        months.append(plan_cost(plan, plan.after, rates_of(plan.config, datetime.now(UTC))).usd_per_month)

    took = measure(price)
    return str(pools), f"{took.wall_s:.2f}", f"{took.cpu_s:.2f}", f"{months[0]:,.2f}"


def _linear(grown: dict[int, Took]) -> bool:
    """Return whether each later pool takes at most 1.5 times as long as each of the first pools."""
    small, middle, large = POOLS
    early = (grown[middle].cpu_s - grown[small].cpu_s) / (middle - small)
    late = (grown[large].cpu_s - grown[middle].cpu_s) / (large - middle)
    return late <= 1.5 * max(early, 0.005)


def _written(folder: Path, stack: str, pools: int | None) -> Path:
    """Write the stack's settings, with copies of its pools up to that number."""
    path = folder / f"Pulumi.{stack}.yaml"
    settings: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    if pools is not None:
        fleet = settings["config"]["gpu-fleet:fleet"]
        shipped = fleet["pools"]
        fleet["pools"] = [
            copy.deepcopy(shipped[number % len(shipped)]) | {"name": f"pool-{number}"} for number in range(pools)
        ]
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def _program(path: Path) -> Took:
    """Return the median run of the program with these settings, by CPU time."""
    found: list[Took] = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(path), str(path.with_suffix(".json"))],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{path.name}: {done.stderr[-2000:]}")
        wall, cpu, resources, mebibytes = done.stdout.split()
        found.append(Took(wall_s=float(wall), cpu_s=float(cpu), resources=int(resources), mebibytes=int(mebibytes)))
    return sorted(found, key=lambda took: took.cpu_s)[ROUNDS // 2]


def _cells(took: Took) -> tuple[str, ...]:
    return f"{took.wall_s:.2f}", f"{took.cpu_s:.2f}", str(took.resources), f"{took.mebibytes} MiB"
