"""Measures the policy pack in its own process, as the engine runs it: start time, and plans with many pools."""

import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import json_format, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from benchmarks.table import Table, measure
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.settings import KEY
from gpufleet.settings.file import read_config
from policies.context import from_config
from policies.pack import RULES, check
from policies.resource import Resource
from scripts.policy_lists.program import plan

ROOT: Final = Path(__file__).parents[1]
STACKS: Final = ("aws-prod", "gcp-prod")
POOLS: Final = (10, 50)
ROUNDS: Final = 5
LIMIT_S: Final = 60
_NO_TIMEOUTS: Final = analyzer_pb2.AnalyzerResourceOptions.CustomTimeouts()


def run() -> Iterator[Table]:
    """Yield a table of the start, then of plans."""
    yield Table(
        title="Start of the policy pack",
        columns=("stack", "seconds to its port"),
        rows=tuple((stack, f"{_started(_texts(_config(stack, None))):.2f}") for stack in STACKS),
        notes=(f"Limit: 2 s. Median of {ROUNDS}; settings and lists are read by then.",),
    )
    rows = [_judged(stack, pools) for stack in STACKS for pools in POOLS]
    yield Table(
        title="A plan judged by the policy pack",
        columns=("stack", "pools", "resources", "pack, seconds", "pack, CPU seconds", "policies check, CPU seconds"),
        rows=tuple(rows),
        notes=(
            f"Limit: 5 s at 50 pools. {len(RULES)} rules. Pack: every resource and then the stack are sent to its"
            " process, one call after the other, as the engine does. CPU seconds, its reading of the calls included,"
            " are about what a machine takes that has nothing else to do.",
        ),
    )


def _config(stack: str, pools: int | None) -> dict[str, Any]:
    """Return the shipped settings, with copies of their pools up to that number."""
    config = copy.deepcopy(dict(read_config(ROOT / "stacks" / "config" / f"Pulumi.{stack}.yaml")))
    if pools is not None:
        shipped = config[KEY]["pools"]
        named = [{"name": f"pool-{number}"} for number in range(pools)]
        config[KEY]["pools"] = [
            copy.deepcopy(shipped[number % len(shipped)]) | name for number, name in enumerate(named)
        ]
    return config


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}


@contextmanager
def _pack(config: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Start the pack. Yield its process id and its address."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "policies"],
        cwd=ROOT,
        env={**os.environ, "PULUMI_CONFIG": json.dumps(config)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.pid, f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _started(config: Mapping[str, str]) -> float:
    took: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with _pack(config):
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def _judged(stack: str, pools: int) -> tuple[str, ...]:
    config = _config(stack, pools)
    texts, resources = _texts(config), plan(stack, config)
    found: list[object] = []
    own = measure(lambda: found.extend(check(resources, from_config(texts, datetime.now(UTC).date()))))
    with _pack(texts) as (process, address), grpc.insecure_channel(address) as channel:
        before = _cpu_s(process)
        by_pack, reported = _asked(channel, resources)
        cpu_s = _cpu_s(process) - before
    if reported != len(found):
        raise RuntimeError(f"{stack}: the pack reports {reported} violations, policies check {len(found)}")
    return stack, str(pools), str(len(resources)), f"{by_pack:.2f}", f"{cpu_s:.2f}", f"{own.cpu_s:.2f}"


def _cpu_s(process: int) -> float:
    """Return the CPU seconds of a process, from the kernel."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _asked(channel: grpc.Channel, resources: Sequence[Resource]) -> tuple[float, int]:
    """Return the seconds and violations of all calls that the engine makes for a plan."""
    pack = analyzer_pb2_grpc.AnalyzerStub(channel)
    each = [_request(resource) for resource in resources]
    whole = analyzer_pb2.AnalyzeStackRequest(resources=[_of_stack(resource) for resource in resources])
    grpc.channel_ready_future(channel).result(LIMIT_S)
    began, found = time.perf_counter(), 0
    for request in each:
        found += len(pack.Analyze(request, timeout=LIMIT_S).diagnostics)
    found += len(pack.AnalyzeStack(whole, timeout=LIMIT_S).diagnostics)
    return time.perf_counter() - began, found


def _request(resource: Resource) -> analyzer_pb2.AnalyzeRequest:
    return analyzer_pb2.AnalyzeRequest(
        type=resource.type,
        name=resource.name,
        urn=resource.urn,
        properties=_properties(resource),
        options=analyzer_pb2.AnalyzerResourceOptions(customTimeouts=_NO_TIMEOUTS),
    )


def _of_stack(resource: Resource) -> analyzer_pb2.AnalyzerResource:
    return analyzer_pb2.AnalyzerResource(
        type=resource.type,
        name=resource.name,
        urn=resource.urn,
        properties=_properties(resource),
        options=analyzer_pb2.AnalyzerResourceOptions(customTimeouts=_NO_TIMEOUTS),
        propertyDependencies={
            key: analyzer_pb2.AnalyzerPropertyDependencies(urns=urns) for key, urns in resource.depends.items()
        },
    )


def _properties(resource: Resource) -> struct_pb2.Struct:
    return json_format.ParseDict(_plain(resource.props), struct_pb2.Struct())


def _plain(value: Any) -> Any:
    """Remove uploaded files from a value, because no rule reads them."""
    if is_map(value):
        return {key: _plain(item) for key, item in value.items()}
    if is_list(value):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
