"""Turns raw samples of a metrics store into token readings and activity. Pure.

Names of metrics are arguments: this package does not depend on an engine.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from gpufleet.costs.slots import ActivitySample, ActivitySignals, Measure, slots
from gpufleet.ledger.facts import ActivityHour, TokenReading
from gpufleet.ledger.teams import TeamReading

_INFINITY: Final = float("inf")
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
    requests: tuple[str, ...]
    gpu_active: tuple[str, ...]
    """In order of preference: the first one that an instance has is used."""
    teams: tuple[str, ...] = ()
    """The router's counters by key: engine seconds, tokens in, tokens out, answers without usage."""
    router_job: str = "router"
    """Their scrape job: counters by key of other jobs are not those of a router."""

    def all(self) -> tuple[str, ...]:
        """Every name, for a selector."""
        return (
            self.prompt,
            self.cached,
            self.generation,
            self.prefill_seconds,
            self.decode_seconds,
            self.process_start,
            *self.requests,
            *self.gpu_active,
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


def readings(fleet: str, names: MetricNames, series: Iterable[RawSeries]) -> list[TokenReading]:
    """Token readings, thinned, by engine and time."""
    columns = {
        names.prompt: "prompt",
        names.cached: "cached",
        names.generation: "generation",
        names.prefill_seconds: "prefill_ms",
        names.decode_seconds: "decode_ms",
    }
    engines: dict[tuple[str, str, str], list[RawSeries]] = defaultdict(list)
    starts: dict[_Target, Sequence[ActivitySample]] = {}
    for one in series:
        instance_id = one.labels.get("instance_id")
        if instance_id is None:
            continue
        if one.name == names.process_start:
            starts[_target(one.labels)] = one.samples
        if one.name in columns:
            engine = f"{_port(one.labels)}/{one.labels.get('engine', '0')}"
            engines[instance_id, engine, one.labels.get("model_name", "")].append(one)
    found: list[TokenReading] = []
    for (instance_id, engine, model), counters in engines.items():
        copies = _by_copy(counters)
        by_time: dict[datetime, dict[str, int]] = defaultdict(dict)
        for name, column in columns.items():
            factor = 1000 if column.endswith("_ms") else 1
            for at, value in _once([copy[name] for copy in copies if name in copy]):
                if 0 <= value < _INFINITY:
                    by_time[at][column] = round(value * factor)
        began = _Starts(starts.get(_target(next(iter(copies[0].values())).labels), ()))
        every = [
            TokenReading(
                environment=fleet,
                instance_id=instance_id,
                engine=engine,
                model=model,
                at=at,
                created_at=began.up_to(at),
                **values,
            )
            for at, values in sorted(by_time.items())
        ]
        found.extend(thin(every))
    return found


def _by_copy(counters: Iterable[RawSeries]) -> list[Mapping[str, RawSeries]]:
    """The counters of one engine by name, for each set of labels (a second job, federation, two replicas of a store).
    The set with the most samples is the first.
    """
    copies: dict[tuple[tuple[str, str], ...], dict[str, RawSeries]] = defaultdict(dict)
    for one in counters:
        labels = tuple(sorted(item for item in one.labels.items() if item[0] != "__name__"))
        copies[labels][one.name] = one
    ranked = sorted(copies.items(), key=lambda copy: (-sum(len(one.samples) for one in copy[1].values()), copy[0]))
    return [copy for _, copy in ranked]


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
    gpus: dict[str, dict[str, list[Sequence[ActivitySample]]]] = defaultdict(lambda: defaultdict(list))
    for one in series:
        instance_id = one.labels.get("instance_id")
        if instance_id is None:
            continue
        clean = [sample for sample in one.samples if 0 <= sample.value < _INFINITY]
        if one.name in names.requests:
            requests[instance_id].append(clean)
        elif one.name in (names.prompt, names.generation):
            tokens[instance_id].append(clean)
        elif one.name in names.gpu_active:
            gpus[instance_id][one.name].append([s for s in clean if s.value <= 1])
    found: list[ActivityHour] = []
    for instance_id in sorted(requests.keys() | tokens.keys() | gpus.keys()):
        named = [name for name in names.gpu_active if name in gpus[instance_id]]
        inactive = gpus[instance_id][named[0]] if named else []
        signals = ActivitySignals(requests=requests[instance_id], tokens=tokens[instance_id], gpus=inactive)
        below = floors.get(instance_id, measure.gpu_active_below)
        found += slots(fleet, instance_id, signals, replace(measure, gpu_active_below=below))
    return found


def _port(labels: Mapping[str, str]) -> str:
    return _address(labels).rpartition(":")[2]


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
    fell = any(a is not None and b is not None and b < a for a, b in pairs)
    return fell or before.created_at != after.created_at
