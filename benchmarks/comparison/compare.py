"""Compares what two players of one engine observed, and what a real engine reports with its contract.

Facts are independent of the engine's speed: counters at rest, whether they change while a request runs, gauges, label
names and statuses.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from benchmarks.comparison.player import Observation
from serving import metrics
from serving.engines.contract import Contract, EngineSeries, Refresh, StopMode
from serving.engines.reading import matches
from serving.exposition import Sample
from serving.metrics import MetricKind
from serving.releases import Version

NEEDS_BACKEND: Final[Mapping[str, str]] = {"triton": "nv_trt_llm_|nv_llm_"}
"""Names that only the TensorRT-LLM backend reports. It needs a GPU, so these are not compared."""
_SHARES: Final = (metrics.KV_CACHE_USAGE,)
_RUN_GAUGES: Final = (metrics.REQUESTS_RUNNING, metrics.OPEN_REQUESTS)
_REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Difference:
    """Something that two players observed differently, or a claim of the contract that does not hold."""

    run: str
    step: str
    name: str
    """Of the series or of the fact."""
    real: str
    expected: str
    """By the simulated engine, the report model or the contract."""

    def __str__(self) -> str:
        return f"{self.run}, {self.step}: {self.name}: real {self.real}, expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Facts:
    """By run, step and name."""

    values: Mapping[tuple[str, str, str], str]

    @property
    def steps(self) -> int:
        """Number of pages."""
        return len({(run, step) for run, step, _ in self.values})


def compared(contract: Contract, version: Version) -> list[EngineSeries]:
    """The series of a release that a machine without a GPU can show."""
    missing = NEEDS_BACKEND.get(contract.kind)
    return [one for one in contract.at(version) if missing is None or not re.match(missing, one.name)]


def facts(contract: Contract, version: Version, observations: Sequence[Observation]) -> Facts:
    """Return what a player observed."""
    found: dict[tuple[str, str, str], str] = {}
    for run, group in groupby(observations, key=lambda one: one.run):
        steps = list(group)
        for series in compared(contract, version):
            for step, fact in _of_series(series, steps):
                found[run, step, series.name] = fact
        for one in steps:
            for name, value in one.facts.items():
                found[run, one.step, name] = _status(value)
    last = {series.name: _labels(series, observations) for series in compared(contract, version)}
    found |= {("labels", "all", name): value for name, value in last.items()}
    return Facts(found)


def _status(value: str) -> str:
    """An engine refuses a request by not accepting the connection, or with an error of its server."""
    return _REFUSED if value in ("connection refused", "500") else value


def _of_series(series: EngineSeries, steps: Sequence[Observation]) -> Iterator[tuple[str, str]]:
    first = before = steps[0]
    for one in steps:
        if one.step == "restarted":
            first = one
        value = _value(series, one)
        if value is None:
            yield one.step, "absent"
        elif _depends_on_speed(series, one):
            yield one.step, "any"
        elif series.measures.kind is MetricKind.GAUGE:
            is_share = series.measures in _SHARES and value
            yield one.step, "above 0" if is_share else f"{value:g}"
        elif not one.is_at_rest:
            yield one.step, _moved(series, before, one)
        elif str(series.measures) in one.varying:
            yield one.step, _moved(series, first, one)
        else:
            yield one.step, f"+{value - (_value(series, first) or 0):g}"
        before = one


def _depends_on_speed(series: EngineSeries, one: Observation) -> bool:
    """Whether a gauge may have several values: while requests run, or within its lag."""
    if series.measures.kind is not MetricKind.GAUGE:
        return False
    return (series.measures in _SHARES and bool(series.lag)) or (series.zero_while_busy and not one.is_at_rest)


def _moved(series: EngineSeries, before: Observation, after: Observation) -> str:
    return "constant" if (_value(series, before) or 0) == (_value(series, after) or 0) else "moved"


def _value(series: EngineSeries, one: Observation) -> float | None:
    values = [sample.value for sample in _samples(series, one)]
    if not values:
        return None
    return max(values) if series.measures in _SHARES else sum(values)


def _samples(series: EngineSeries, one: Observation) -> list[Sample]:
    name = series.name + ("_count" if series.measures.kind is MetricKind.HISTOGRAM else "")
    return [sample for sample in one.samples() if sample.name == name and matches(series, sample)]


def _labels(series: EngineSeries, observations: Sequence[Observation]) -> str:
    names = {label for one in observations for sample in _samples(series, one) for label in sample.labels}
    return ", ".join(sorted(names))


def differences(real: Facts, other: Facts, ignored: Iterable[str] = ()) -> list[Difference]:
    """Return every fact that differs. `ignored`: names that the other player does not have."""
    skipped = set(ignored)
    return sorted(
        Difference(
            run=run,
            step=step,
            name=name,
            real=real.values.get((run, step, name), "not observed"),
            expected=other.values.get((run, step, name), "not observed"),
        )
        for run, step, name in real.values.keys() | other.values.keys()
        if name not in skipped and real.values.get((run, step, name)) != other.values.get((run, step, name))
    )


def violations(contract: Contract, version: Version, observations: Sequence[Observation]) -> list[Difference]:
    """Return each claim of the contract that the observations of a real engine refute."""
    found: list[Difference] = []
    for series in compared(contract, version):
        found += _of_kind(series, observations)
        for _, group in groupby(observations, key=lambda one: one.run):
            steps = list(group)
            found += _at_rest(series, steps)
            found += _while_busy(contract, series, steps)
    found += _of_probes(contract, version, observations)
    return found


def _of_kind(series: EngineSeries, observations: Sequence[Observation]) -> Iterator[Difference]:
    present = any(_samples(series, one) for one in observations)
    lines = {line for one in observations for line in one.page.splitlines() if line.startswith("# TYPE ")}
    kinds = {line.split()[3] for line in lines if line.split()[2] == series.name}
    if not present or kinds != {str(series.measures.kind)}:
        expected = str(series.measures.kind)
        yield Difference(run="all", step="all", name=series.name, real=str(sorted(kinds)), expected=expected)


def _at_rest(series: EngineSeries, steps: Sequence[Observation]) -> Iterator[Difference]:
    if series.measures.kind is not MetricKind.GAUGE or series.kept_at_rest or series.measures in _SHARES:
        return
    for one in steps:
        if one.is_at_rest and _value(series, one):
            real = f"{_value(series, one):g}"
            yield Difference(run=one.run, step=one.step, name=series.name, real=real, expected="0 at rest")


def _while_busy(contract: Contract, series: EngineSeries, steps: Sequence[Observation]) -> Iterator[Difference]:
    busy = [one for one in steps if not one.is_at_rest]
    if not busy:
        return
    run, step = busy[-1].run, busy[-1].step
    if series.refresh is Refresh.REQUEST_END:
        for before, after in pairwise(busy):
            if (_value(series, before) or 0) != (_value(series, after) or 0):
                expected = "constant until a request ends"
                yield Difference(run=run, step=after.step, name=series.name, real="moved", expected=expected)
    if series.zero_while_busy or series.measures not in contract.evidence.idle:
        return
    if series.measures in _RUN_GAUGES and not any(_value(series, one) for one in busy):
        yield Difference(run=run, step=step, name=series.name, real="0", expected="above 0 while a request runs")
    if series.measures.kind is MetricKind.COUNTER:
        for before, after in pairwise(busy):
            if _value(series, before) == _value(series, after):
                expected = "moves while a request runs"
                yield Difference(run=run, step=after.step, name=series.name, real="constant", expected=expected)


def _of_probes(contract: Contract, version: Version, observations: Sequence[Observation]) -> Iterator[Difference]:
    by_step = {(one.run, one.step): one for one in observations}
    fact = {(one.run, name): value for one in observations for name, value in one.facts.items()}
    start, probed = by_step["idle", "start"], by_step["idle", "50 probes"]
    for series in compared(contract, version):
        if _value(series, start) != _value(series, probed):
            yield Difference(run="idle", step="50 probes", name=series.name, real="moved", expected="constant")
    restarted, before = by_step["drain and restart", "restarted"], by_step["drain and restart", "start"]
    for series in compared(contract, version):
        old, new = _value(series, before) or 0, _value(series, restarted) or 0
        if series.measures.kind is MetricKind.COUNTER and new >= old > 0:
            yield Difference(
                run="drain and restart", step="restarted", name=series.name, real=f"{new:g}", expected="starts at 0"
            )
    if Version.parse(fact["idle", "release"]) not in contract.tested:
        yield Difference(
            run="idle", step="start", name="release", real=fact["idle", "release"], expected=str(contract.tested)
        )
    for name, expected in (("without the key", "401"), ("key on a command line", "no")):
        real = fact.get(("idle", name), expected)
        if real != expected:
            yield Difference(run="idle", step="start", name=name, real=real, expected=expected)
    accepts = contract.drain.stop is StopMode.FINISHES_AND_ACCEPTS
    succeeds = {"a new request": accepts, "status": True}
    for name, is_200 in succeeds.items():
        real = fact["drain and restart", name]
        if (real == "200") != is_200:
            text = "200" if is_200 else "not 200"
            yield Difference(run="drain and restart", step="restarted", name=name, real=real, expected=text)
