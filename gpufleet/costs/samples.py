"""Turns raw samples of a metrics store into token readings and activity. Pure.

Names of metrics are arguments: this package does not depend on an engine.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from gpufleet.costs.slots import ActivitySample, ActivitySignals, Measure, slots
from gpufleet.ledger.facts import ActivityHour, TokenReading
from gpufleet.ledger.teams import TeamReading

_INFINITY: Final = float("inf")
_BEFORE: Final = timedelta(milliseconds=1)
"""Scrapes have times in whole milliseconds, and are further apart."""
_CLOCKS: Final = 2.0
"""Seconds that the clocks of an instance and of the metrics store may differ by."""
KEEP_EVERY: Final = timedelta(minutes=5)
"""Readings closer together than this are thinned; first, last and both sides of a reset always stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """The names of the metrics of engines, GPU exporters and routers."""

    prompt: str
    cached: str
    generation: str
    prefill_seconds: str
    decode_seconds: str
    process_start: str
    """When the process that serves a page began."""
    requests: tuple[str, ...]
    gate_requests: tuple[str, ...] = ()
    """Gauges of requests in front of an engine: they show activity where the engine's own gauges prove nothing."""
    no_evidence: tuple[str, str] = ("", "")
    """A label and its value on gauges that prove nothing, such as one that keeps its last value at rest."""
    gpu_active: tuple[str, ...]
    """Gauges of the activity of a GPU, or of a slice of one."""
    gpu_scales: tuple[str, Mapping[str, float]] = ("", MappingProxyType({}))
    """A label with the unit of an activity, and the factor of each unit to a share. A series without a factor is left
    out, unless the label is empty."""
    gpu_coarse: tuple[str, str] = ("", "")
    """A label and its value on activity that can be 0 while the GPU computes: it shows work only."""
    gpu_doubt: str = ""
    """A label of activity whose 0 was not measured, whatever other numbers its GPU has."""
    gpu_kept: tuple[str, frozenset[str]] = ("", frozenset())
    """A label and its values on activity that can keep its last value after its program ended: alone it shows no
    work."""
    gpu_executions: tuple[str, ...] = ()
    """Counters whose changes show work of an instance's GPUs."""
    gpu_units: tuple[str, ...] = ()
    """Labels that identify a GPU, or a slice of one."""
    teams: tuple[str, ...] = ()
    """The router's counters by key: engine seconds, tokens in, tokens out, answers without usage."""
    router_job: str = "router"
    """Their scrape job: counters by key of other jobs are not those of a router."""
    engine_start: str = ""
    """When an instance's engine began, by its node agent: not every engine reports it on its page."""
    model_labels: tuple[str, ...] = ("model_name",)
    """Labels of an engine's model: the first one that a counter has is used."""
    engine_labels: tuple[str, ...] = ("engine",)
    """Labels of a part of a page that counts alone: the first one that a counter has is used."""
    part_labels: tuple[str, ...] = ()
    """Labels that divide a counter: its series with different values of them add up to it."""

    def all(self) -> tuple[str, ...]:
        """Every name, for a selector."""
        return (
            self.prompt,
            self.cached,
            self.generation,
            self.prefill_seconds,
            self.decode_seconds,
            self.process_start,
            *((self.engine_start,) if self.engine_start else ()),
            *self.requests,
            *self.gate_requests,
            *self.gpu_active,
            *self.gpu_executions,
            *self.teams,
        )


@dataclass(frozen=True, slots=True)
class RawSeries:
    """Raw samples of one series, in the order of time."""

    labels: Mapping[str, str]
    samples: Sequence[ActivitySample]

    @property
    def name(self) -> str:
        return self.labels.get("__name__", "")


def is_blank(value: float) -> bool:
    """Whether a value means "no measurement": NaN, an infinity, or below zero."""
    return not 0 <= value < _INFINITY


def shares(samples: Iterable[ActivitySample], factor: float, *, coarse: bool) -> list[ActivitySample]:
    """Activity as shares of time. NaN: not a measurement. It stays, since the time around it is unknown, too.

    Percentages are whole numbers: a value between 0 and 1 is a share under the name of a percentage. `coarse`: the
    number shows work only, so a value that has another unit shows it, too.
    """
    return [
        one if factor == 1 and 0 <= one.value <= 1 else ActivitySample(one.at, _share(one.value, factor, coarse))
        for one in samples
    ]


def _share(value: float, factor: float, coarse: bool) -> float:
    share, other = (value, value / 100) if factor == 1 else (value * factor, value)
    if 0 <= share <= 1 and (factor == 1 or not 0 < value < 1):
        return share
    return other if coarse and 0 <= other <= 1 else math.nan


_EngineKey = tuple[str, str, str]
"""Instance id, engine (port and part of its page), model."""
_Page = tuple[datetime, datetime]
"""The first two times at which a page was read."""


def readings(fleet: str, names: MetricNames, series: Iterable[RawSeries]) -> list[TokenReading]:
    """Token readings, thinned, by engine and time."""
    columns = {
        names.prompt: "prompt",
        names.cached: "cached",
        names.generation: "generation",
        names.prefill_seconds: "prefill_ms",
        names.decode_seconds: "decode_ms",
    }
    engines: dict[_EngineKey, list[RawSeries]] = defaultdict(list)
    pages: dict[_EngineKey, dict[_Target, _Page]] = defaultdict(dict)
    starts: dict[_Target, Sequence[ActivitySample]] = {}
    restarts: dict[str, set[float]] = defaultdict(set)
    since = datetime.max.replace(tzinfo=UTC)
    for one in series:
        if "instance_id" not in one.labels:
            continue
        since = min(since, one.samples[0].at) if one.samples else since
        if one.name == names.process_start:
            starts[_target(one.labels)] = one.samples
        elif one.name == names.engine_start:
            restarts[one.labels["instance_id"]] |= {value for _, value in one.samples}
        elif one.name in columns:
            engines[_engine_key(one.labels, names)].append(one)
        elif one.name in names.requests and len(one.samples) > 1:
            known, target = pages[_engine_key(one.labels, names)], _target(one.labels)
            page = one.samples[0].at, one.samples[1].at
            known[target] = min(page, known.get(target, page))
    found: list[TokenReading] = []
    counting = {_page_of(key) for key in engines}
    for key in sorted(engines.keys() | {key for key in pages if _page_of(key) not in counting}):
        copies = _by_copy(engines.get(key, ()), names.part_labels)
        target = _target(next(iter(copies[0].values())).labels) if copies else min(pages[key])
        process = starts.get(target, ())
        by_time = _counts(columns, copies, pages[key].get(target), process)
        if not process:
            _restart(by_time, restarts[key[0]], since)
        began = _Starts(process)
        every = [
            TokenReading(
                environment=fleet,
                instance_id=key[0],
                engine=key[1],
                model=key[2],
                at=at,
                created_at=began.up_to(at),
                **values,
            )
            for at, values in sorted(by_time.items())
        ]
        found.extend(thin(every))
    return found


def _counts(
    columns: Mapping[str, str],
    copies: Sequence[Mapping[str, RawSeries]],
    page: _Page | None,
    process: Sequence[ActivitySample],
) -> dict[datetime, dict[str, int]]:
    """The counters of one engine by time. `columns`: metric to counter."""
    by_time: dict[datetime, dict[str, int]] = defaultdict(dict)
    first: dict[str, datetime] = {}
    for name, column in columns.items():
        factor = 1000 if column.endswith("_ms") else 1
        samples = _once([copy[name] for copy in copies if name in copy])
        if samples:
            first[column] = samples[0].at
        for at, value in samples:
            if 0 <= value < _INFINITY:
                by_time[at][column] = round(value * factor)
    if page is not None:
        _add_zeros(by_time, first, page, process)
    return by_time


def _page_of(key: _EngineKey) -> tuple[str, str]:
    """Instance id and port."""
    return key[0], key[1].partition("/")[0]


def _engine_key(labels: Mapping[str, str], names: MetricNames) -> _EngineKey:
    engine = f"{port_of(labels)}/{_label(labels, names.engine_labels) or '0'}"
    return labels["instance_id"], engine, _label(labels, names.model_labels)


def _label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """The value of the first of these labels that there is."""
    return next((labels[name] for name in names if labels.get(name)), "")


def _add_zeros(
    by_time: dict[datetime, dict[str, int]],
    first: Mapping[str, datetime],
    page: _Page,
    process: Sequence[ActivitySample],
) -> None:
    """Add a reading of 0 before the first one of each counter that the page did not have at first.

    Engines report counters with labels only after the first request. Its tokens would be lost, because a difference
    needs a reading before it. A page without counters shows that its engine was ready. `first`: the first time of
    each counter. Counters of a page have the times of the page: one that is missing once is not enough, since the
    pages of two stores may be mixed.
    """
    ready, again = page
    late: dict[datetime, list[str]] = defaultdict(list)
    for column, at in first.items():
        if at > again:
            late[at].append(column)
    for at, columns in sorted(late.items()):
        earlier = max((time for time in by_time if time < at), default=None)
        began = _Starts(process)
        same = earlier is not None and began.up_to(earlier) == began.up_to(at)
        kept = by_time[earlier] if earlier is not None and same else {}
        by_time[at - _BEFORE] = {**kept, **dict.fromkeys(columns, 0)}
    if not by_time or again < min(by_time):
        by_time[ready] = {}


def _restart(by_time: dict[datetime, dict[str, int]], starts: Iterable[float], since: datetime) -> None:
    """Add a reading of 0 before the first one of each process that began after `since`.

    A reading shortly after the start can be of the process before it, since clocks differ. The next one then shows
    lower counters.
    """
    times = sorted(by_time)
    for start in starts:
        if start + _CLOCKS <= since.timestamp():
            continue
        later = [time for time in times if time.timestamp() >= start]
        if len(later) > 1 and later[0].timestamp() < start + _CLOCKS and _falls(*(by_time[at] for at in later[:2])):
            later = later[1:]
        if later and later[0] - _BEFORE not in by_time:
            by_time[later[0] - _BEFORE] = dict.fromkeys(by_time[later[0]], 0)


def _falls(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    return any(after[name] < value for name, value in before.items() if name in after)


def _by_copy(counters: Iterable[RawSeries], parts: Sequence[str] = ()) -> list[Mapping[str, RawSeries]]:
    """The counters of one engine by name, for each set of labels (a second job, federation, two replicas of a store).
    The set with the most samples is the first. Series that differ only in `parts` are added up.
    """
    ignored = {"__name__", *parts}
    copies: dict[tuple[tuple[str, str], ...], dict[str, list[RawSeries]]] = defaultdict(lambda: defaultdict(list))
    for one in counters:
        labels = tuple(sorted(item for item in one.labels.items() if item[0] not in ignored))
        copies[labels][one.name].append(one)
    summed = {labels: {name: _sum(same) for name, same in copy.items()} for labels, copy in copies.items()}
    ranked = sorted(summed.items(), key=lambda copy: (-sum(len(one.samples) for one in copy[1].values()), copy[0]))
    return [copy for _, copy in ranked]


def _sum(parts: Sequence[RawSeries]) -> RawSeries:
    """The sum of the parts of a counter. Parts of one page have the same times."""
    if len(parts) == 1:
        return parts[0]
    values: dict[datetime, float] = defaultdict(float)
    for part in parts:
        for at, value in part.samples:
            values[at] += value
    return RawSeries(parts[0].labels, [ActivitySample(at, values[at]) for at in sorted(values)])


def _once(copies: Sequence[RawSeries]) -> Sequence[ActivitySample]:
    """The samples of one counter: all of its first copy, and those of other copies that are before or after these.

    The clocks of two stores may differ. A mix of both could seem to decrease, which counts as a restart.
    """
    kept: list[ActivitySample] = []
    for copy in copies:
        before = [sample for sample in copy.samples if kept and sample.at < kept[0].at]
        kept = [*before, *kept, *(sample for sample in copy.samples if not kept or sample.at > kept[-1].at)]
    return kept


_Target = tuple[str, str, str]
"""Instance id, job and scraped address: the source of both a counter and the start of its process."""


def _target(labels: Mapping[str, str]) -> _Target:
    return labels.get("instance_id", ""), labels.get("job", ""), _address(labels)


def _address(labels: Mapping[str, str]) -> str:
    """The scraped address. A store that copies another's puts its own name there and keeps the address in
    `exported_instance` (Prometheus, "honor_labels").
    """
    return labels.get("exported_instance") or labels.get("instance", "")


def team_readings(fleet: str, names: MetricNames, series: Iterable[RawSeries]) -> list[TeamReading]:
    """Readings of each router by key: one per key and five minutes, and the last one."""
    columns = dict(zip(names.teams, ("replica_ms", "tokens_in", "tokens_out", "unmetered"), strict=False))
    keys: dict[tuple[str, str, str, str], list[RawSeries]] = defaultdict(list)
    for one in series:
        if one.name in columns and one.labels.get("job") == names.router_job:
            team, model, pool = (one.labels.get(name, "") for name in ("key", "model", "pool"))
            keys[_address(one.labels), team, model, pool].append(one)
    found: list[TeamReading] = []
    for (router, team, model, pool), counters in keys.items():
        copies = _by_copy(counters)
        by_time: dict[datetime, dict[str, int]] = defaultdict(dict)
        for name, column in columns.items():
            factor = 1000 if column == "replica_ms" else 1
            for at, value in _once([copy[name] for copy in copies if name in copy]):
                if not is_blank(value):
                    by_time[at][column] = round(value * factor)
        kept: datetime | None = None
        times = sorted(by_time)
        for at in times:
            if kept is None or at - kept >= KEEP_EVERY or at == times[-1]:
                kept = at
                counters = by_time[at]
                found.append(
                    TeamReading(fleet=fleet, router=router, team=team, model=model, pool=pool, at=at, **counters)
                )
    return found


def thin(every: Sequence[TokenReading]) -> list[TokenReading]:
    """Fewer readings, same differences: the first, the last, both sides of a reset, one every five minutes."""
    kept: list[TokenReading] = []
    for index, reading in enumerate(every):
        following = every[index + 1] if index + 1 < len(every) else None
        ends = not kept or following is None or _reset(reading, following) or _reset(every[index - 1], reading)
        if ends or reading.at - kept[-1].at >= KEEP_EVERY:
            kept.append(reading)
    return kept


@dataclass(slots=True)
class _GpuSamples:
    """The activity of the GPUs of one instance."""

    proving: list[Sequence[ActivitySample]] = field(default_factory=list[Sequence[ActivitySample]])
    coarse: list[Sequence[ActivitySample]] = field(default_factory=list[Sequence[ActivitySample]])
    kept: list[Sequence[ActivitySample]] = field(default_factory=list[Sequence[ActivitySample]])
    executions: list[Sequence[ActivitySample]] = field(default_factory=list[Sequence[ActivitySample]])
    units: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    proved: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    doubted: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])

    def add(self, names: MetricNames, labels: Mapping[str, str], samples: Sequence[ActivitySample]) -> None:
        """Add a series."""
        unit_label, scales = names.gpu_scales
        scale = scales.get(labels.get(unit_label, "")) if unit_label else 1.0
        unit = tuple(labels.get(name, "") for name in names.gpu_units)
        self.units.add(unit)
        if names.gpu_doubt and labels.get(names.gpu_doubt):
            self.doubted.add(unit)
        if scale is None:
            return
        label, value = names.gpu_coarse
        if label and labels.get(label) == value:
            self.coarse.append(shares(samples, scale, coarse=True))
            return
        label, kept = names.gpu_kept
        proving = self.kept if label and labels.get(label) in kept else self.proving
        proving.append(shares(samples, scale, coarse=False))
        self.proved.add(unit)


def activity(
    fleet: str,
    names: MetricNames,
    series: Iterable[RawSeries],
    measure: Measure,
    floors: Mapping[str, float] = MappingProxyType({}),
) -> list[ActivityHour]:
    """Busy and idle slots by instance. `floors`: the GPU noise floor of instances whose pool sets one."""
    requests: dict[str, list[Sequence[ActivitySample]]] = defaultdict(list)
    tokens: dict[str, list[Sequence[ActivitySample]]] = defaultdict(list)
    gpus: dict[str, _GpuSamples] = defaultdict(_GpuSamples)
    for one in series:
        instance_id = one.labels.get("instance_id")
        if instance_id is None:
            continue
        if one.name in names.gpu_active:
            gpus[instance_id].add(names, one.labels, one.samples)
            continue
        clean = [sample for sample in one.samples if 0 <= sample.value < _INFINITY]
        if one.name in (*names.requests, *names.gate_requests):
            label, value = names.no_evidence
            if not label or one.labels.get(label) != value:
                requests[instance_id].append(clean)
        elif one.name in (names.prompt, names.generation):
            tokens[instance_id].append(clean)
        elif one.name in names.gpu_executions:
            gpus[instance_id].executions.append(clean)
    found: list[ActivityHour] = []
    for instance_id in sorted(requests.keys() | tokens.keys() | gpus.keys()):
        seen = gpus[instance_id]
        signals = ActivitySignals(
            requests=requests[instance_id],
            tokens=tokens[instance_id],
            gpus=seen.proving,
            coarse_gpus=seen.coarse,
            kept_gpus=seen.kept,
            executions=seen.executions,
            all_gpus_proved=seen.units <= seen.proved - seen.doubted,
        )
        below = floors.get(instance_id, measure.gpu_active_below)
        found += slots(fleet, instance_id, signals, replace(measure, gpu_active_below=below))
    return found


def port_of(labels: Mapping[str, str]) -> str:
    """The port of the scraped page."""
    return _address(labels).rpartition(":")[2]


def model_of(labels: Mapping[str, str], names: MetricNames) -> str:
    """The model that an engine's series names; empty: none."""
    return _label(labels, names.model_labels)


class _Starts:
    """The start of an engine's process, from its newest reading. Query it in the order of time."""

    def __init__(self, samples: Sequence[ActivitySample]) -> None:
        self._samples = samples
        self._next = 0
        self._newest: float | None = None
        self._began: datetime | None = None

    def up_to(self, at: datetime) -> datetime | None:
        """None: no reading up to then."""
        while self._next < len(self._samples) and self._samples[self._next].at <= at:
            value = self._samples[self._next].value
            self._next += 1
            if value != self._newest and not is_blank(value):
                self._newest = value
                self._began = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=round(value * 1000))
        return self._began


def _reset(before: TokenReading, after: TokenReading) -> bool:
    pairs = (
        (before.prompt, after.prompt),
        (before.cached, after.cached),
        (before.generation, after.generation),
        (before.prefill_ms, after.prefill_ms),
        (before.decode_ms, after.decode_ms),
    )
    # a counter that appears is like a reset: its first difference needs the reading before it
    fell = any(b is not None and (a is None or b < a) for a, b in pairs)
    return fell or before.created_at != after.created_at
