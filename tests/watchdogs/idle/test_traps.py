"""Every documented trap of DCGM and vLLM metrics, through a real Prometheus and the whole watchdog.

Each trap bends the page of one source while the other source sees nothing, so that nobody else can save the instance.
A busy one is kept. An idle one is marked where the trap hides nothing, and kept with its reason where it might.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gpufleet.domain.decisions import Action, Decision, Reason, Target
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import READY, START, document, instance
from tests.fixtures.watchdogs.recordings import SPAN, STEP, Series, Value, engine, exporter, flat, growing, prometheus
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus"),
]

Page = list[Series]
RUNNING, ACTIVE, UTIL = "gpufleet_engine_requests_running", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
WAITING = "gpufleet_engine_requests_waiting"
COUNTERS = (
    "gpufleet_engine_prompt_tokens_total",
    "gpufleet_engine_generation_tokens_total",
    "gpufleet_engine_requests_finished_total",
)
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
LATE = 150.0
"""Seconds before now: what begins then fills less than a tenth of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A way in which a metrics page is wrong, and the verdict on an idle instance that shows it."""

    name: str
    bend: Callable[[Page], Page]
    idle: Reason = Reason.IDLE
    machine_type: str = "g6.xlarge"


def only(name: str, change: Callable[[Series], Series]) -> Callable[[Page], Page]:
    return lambda page: [change(one) if one.name == name else one for one in page]


def without(*names: str) -> Callable[[Page], Page]:
    return lambda page: [one for one in page if one.name not in names]


def with_series(name: str, value: Value) -> Callable[[Page], Page]:
    return only(name, lambda one: one.with_value(value))


def both(*bends: Callable[[Page], Page]) -> Callable[[Page], Page]:
    def bend(page: Page) -> Page:
        for one in bends:
            page = one(page)
        return page

    return bend


def collected_each(seconds: float) -> Callable[[Page], Page]:
    """An exporter that repeats a page until it collects again, which it did as long ago as it can have."""
    return lambda page: [
        one.with_value(lambda at, value=one.value: value(at // seconds * seconds + seconds)) for one in page
    ]


def frozen(page: Page) -> Page:
    """The same values for ever: those of a quiet moment, since what it repeats is old."""
    quiet = engine(busy=False) if page[0].job == "engine" else exporter(busy=False)
    values = {one.name: one.value(SPAN) for one in quiet}
    return [one.with_value(flat(values[one.name] or 0.0)) for one in page]


def frozen_late(page: Page) -> Page:
    """Quiet until shortly before now, and the same page since then, whatever it does."""
    quiet = engine(busy=False) if page[0].job == "engine" else exporter(busy=False)
    return [one.with_value(lambda at, value=one.value: value(max(at, LATE))) for one in quiet]


def removed(value: Value, since_ago: float, until_ago: float) -> Value:
    """Not on the page from the one to the other, less than a tenth of the window."""
    return lambda at: None if until_ago <= at < since_ago else value(at)


def at_work_unseen(*names: str) -> Callable[[Page], Page]:
    """All of its work was while these were not on the page, which had everything else."""

    def bend(page: Page) -> Page:
        quiet = engine(busy=False) if page[0].job == "engine" else exporter(busy=False)
        return [one.with_value(removed(one.value, 760, 600)) if one.name in names else one for one in quiet]

    return bend


def scraped_more_often_once(page: Page) -> Page:
    """A shorter interval made samples enough for the whole window, and then nothing was scraped while it worked."""
    quiet = engine(busy=False) if page[0].job == "engine" else exporter(busy=False)
    return [replace(one, every=5).with_value(removed(one.value, 1200, 500)) for one in quiet]


def four_gpus(*numbers: tuple[str, str]) -> Callable[[Page], Page]:
    """GPUs of a machine with four, by `gpu` and UUID; the work is on one that is not there."""
    return lambda _: [one.with_labels(gpu=gpu, UUID=uuid) for gpu, uuid in numbers for one in exporter(busy=False)]


def short_burst(page: Page) -> Page:
    """Three minutes at the card's limit, shown by its energy counter alone."""
    if not at_work(page):
        return page

    def energy(ago: float) -> float:
        return (growing(28_000, 1e9)(ago) or 0.0) + 44_000 * max(0.0, min(180.0, 780.0 - ago))

    return with_series(ENERGY, energy)(without(UTIL)(with_series(ACTIVE, flat(0.0))(page)))


def since(value: Value, ago: float) -> Value:
    return lambda at: value(at) if at <= ago else None


def until(value: Value, ago: float) -> Value:
    return lambda at: value(at) if at > ago else None


def at_work_late(value: Value) -> Value:
    """Quiet until shortly before now."""
    return lambda at: value(at) if at <= LATE else 0.0


def renamed_late(old: str, new: str) -> Callable[[Page], Page]:
    """An exporter that was updated within the window, with work since then only."""

    def bend(page: Page) -> Page:
        found: Page = []
        for one in page:
            if one.name == old:
                found += [one.with_value(until(flat(0.0), LATE)), one.named(new).with_value(since(one.value, LATE))]
            else:
                found.append(one)
        return found

    return bend


def relabelled(page: Page) -> Page:
    """dcgm-exporter since May 2026: `hostname` for `Hostname`."""
    found: Page = []
    for one in page:
        kept = {key: value for key, value in one.labels.items() if key != "Hostname"}
        found.append(replace(one, labels={**kept, "hostname": "h"}))
    return found


def relabelled_late(page: Page) -> Page:
    before = [one.with_value(until(flat(0.0) if one.name != ENERGY else one.value, LATE)) for one in page]
    return before + [one.with_value(since(one.value, LATE)) for one in relabelled(page)]


def sliced(page: Page) -> Page:
    """Seven MIG slices; the work is in the last one."""
    found: Page = []
    for one in page:
        if one.name == UTIL:
            continue  # not there with MIG
        quiet = one.value if one.name == ENERGY else flat(0.0)
        for number in range(7):
            slice_ = one.with_labels(GPU_I_ID=str(number + 7), GPU_I_PROFILE="1g.10gb")
            found.append(slice_ if number == 6 else slice_.with_value(quiet))
    return found


def quiet_engine() -> Page:
    """Another one on the same page; the metrics of the process occur once."""
    return [one for one in engine(busy=False, number="1") if one.labels]


def counting_none(page: Page) -> Page:
    """An engine that has not finished anything since it started, whose requests are between two scrapes."""
    return [one.with_value(flat(0.0)) if one.name in COUNTERS else one for one in unseen_requests(page)]


def only_waiting(page: Page) -> Page:
    (running,) = (one.value for one in page if one.name == RUNNING)
    return with_series(WAITING, running)(counting_none(page))


def first_abort(page: Page) -> Page:
    """A counter that begins at 1, with no token counted."""
    aborted = since(flat(1.0), 600) if at_work(page) else None
    found = [one for one in counting_none(page) if one.name != COUNTERS[2]]
    return found + [one.with_value(aborted) for one in page if one.name == COUNTERS[2] and aborted is not None]


def at_work(page: Page) -> bool:
    return any(one.name in (RUNNING, ACTIVE) and one.value(0) for one in page)


def second_process(page: Page) -> Page:
    """On another port, and it calls its engine 0, too."""
    return [one.with_labels(instance="b") for one in page] + [
        one.with_labels(instance="a") for one in engine(busy=False)
    ]


def second_model(page: Page) -> Page:
    return page + [one.with_labels(model_name="n") for one in engine(busy=False) if one.labels]


def second_engine(page: Page) -> Page:
    return quiet_engine() + page


def lost_engine(page: Page) -> Page:
    """Of two engines the one with the work does not report any more."""
    return quiet_engine() + [one.with_value(until(one.value, 600)) if one.labels else one for one in page]


def fell_back(value: Value) -> Value:
    """A counter that was reset ten minutes ago."""
    return lambda at: value(at) if at > 600 else (value(at) or 0) - (value(600) or 0)


def unseen_requests(page: Page) -> Page:
    """Requests that begin and end between two scrapes."""
    return with_series(RUNNING, flat(0.0))(page)


def born_late(page: Page) -> Page:
    """Counters that appear with the first request, already counted; the request itself was between two scrapes."""
    found = unseen_requests(page)
    if not at_work(page):
        return found
    return [one.with_value(since(flat(50.0), 600)) if one.name in COUNTERS else one for one in found]


def no_numbers(*names: str) -> Callable[[Page], Page]:
    """Of two engines, or two GPUs, the one with the work says NaN; the other one is quiet."""

    def bend(page: Page) -> Page:
        series = [one.with_value(flat(float("nan"))) if one.name in names else one for one in unseen_requests(page)]
        if page[0].job == "engine":
            return series + quiet_engine()
        return series + [one.with_labels(gpu="1", UUID="GPU-1") for one in exporter(busy=False)]

    return bend


def blip(value: Value, blank: float) -> Value:
    return lambda at: blank if 600 <= at < 600 + STEP else value(at)


def rename_engine(page: Page) -> Page:
    """A pipeline that knows no colons."""
    return [one.named(one.name.replace("gpufleet_engine_", "engine_")) for one in page]


PAGES = {"engine": engine, "accelerator": exporter}
NO_MEASUREMENT = Reason.METRICS_IMPLAUSIBLE
TRAPS: dict[str, list[Trap]] = {
    "accelerator": [
        *(
            Trap(
                name=f"{what} of {field.split('_FI_')[1]}", bend=with_series(field, flat(blank)), idle=NO_MEASUREMENT
            )
            for field in (ACTIVE, UTIL, ENERGY)
            for what, blank in (
                ("blank of 32 bits", 2147483632.0),
                ("blank of 64 bits", 9223372036854775794.0),
                ("blank of a double", 140737488355328.0),
                ("not supported, double", 140737488355330.0),
            )
        ),
        Trap(
            name="one blank sample",
            bend=only(ACTIVE, lambda one: one.with_value(blip(one.value, 9223372036854775794.0))),
            idle=NO_MEASUREMENT,
        ),
        Trap(name="PROF reads 0 under load", bend=with_series(ACTIVE, flat(0.0))),
        Trap(name="PROF reads 0, no utilization", bend=both(with_series(ACTIVE, flat(0.0)), without(UTIL))),
        Trap(name="PROF fields absent", bend=without(ACTIVE), idle=Reason.ACCELERATOR_UNKNOWN),
        Trap(
            name="profiling paused",
            bend=only(ACTIVE, lambda one: one.with_value(until(flat(0.0), 400))),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(name="renamed in 4.6", bend=only(ACTIVE, lambda one: one.named("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"))),
        Trap(
            name="both names at once",
            bend=lambda page: (
                page + [one.named("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO") for one in page if one.name == ACTIVE]
            ),
        ),
        Trap(
            name="renamed within the window",
            bend=both(
                renamed_late(ACTIVE, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
                without(UTIL),
                with_series(ENERGY, growing(28_000, 1e9)),
            ),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="utilization renamed, a share now, PROF 0",
            bend=both(
                with_series(ACTIVE, flat(0.0)),
                only(UTIL, lambda one: one.named("DCGM_FI_DEV_GPU_UTIL_RATIO").with_value(_hundredth(one.value))),
                with_series(ENERGY, growing(28_000, 1e9)),
            ),
        ),
        Trap(
            name="utilization renamed within the window, PROF 0",
            bend=both(
                with_series(ACTIVE, flat(0.0)),
                only(UTIL, lambda one: one.with_value(_hundredth(one.value))),
                renamed_late(UTIL, "DCGM_FI_DEV_GPU_UTIL_RATIO"),
                with_series(ENERGY, growing(28_000, 1e9)),
            ),
        ),
        Trap(name="percent for a share", bend=only(ACTIVE, lambda one: one.with_value(_hundredfold(one.value)))),
        Trap(name="PROF is NaN on one of two GPUs", bend=no_numbers(ACTIVE), idle=NO_MEASUREMENT),
        Trap(
            name="PROF reads 0 and utilization NaN on one of two GPUs",
            bend=both(with_series(ACTIVE, flat(0.0)), with_series(ENERGY, growing(28_000, 1e9)), no_numbers(UTIL)),
            idle=NO_MEASUREMENT,
        ),
        Trap(name="MIG slices", bend=sliced),
        Trap(
            name="MIG, the busy slice was off the page for a while",
            bend=lambda page: [
                one.with_value(removed(one.value, 760, 600))
                if one.labels["GPU_I_ID"] == "13" and one.name == ACTIVE
                else one
                for one in sliced(exporter(busy=False))
            ],
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="profiling paused for less than a tenth",
            bend=at_work_unseen(ACTIVE),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="scraped more often, then not",
            bend=scraped_more_often_once,
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="utilization is a share by its old name, PROF 0",
            bend=both(
                with_series(ACTIVE, flat(0.0)),
                only(UTIL, lambda one: one.with_value(_hundredth(one.value))),
                with_series(ENERGY, growing(28_000, 1e9)),
            ),
        ),
        Trap(
            name="PROF reads 0 and renamed utilization NaN on one of two GPUs",
            bend=both(
                with_series(ACTIVE, flat(0.0)),
                with_series(ENERGY, growing(28_000, 1e9)),
                no_numbers(UTIL),
                only(UTIL, lambda one: one.named("DCGM_FI_DEV_GPU_UTIL_RATIO")),
            ),
            idle=NO_MEASUREMENT,
        ),
        Trap(
            name="utilization reads -1, PROF 0",
            bend=both(
                with_series(ACTIVE, flat(0.0)),
                with_series(UTIL, flat(-1.0)),
                with_series(ENERGY, growing(28_000, 1e9)),
            ),
            idle=NO_MEASUREMENT,
        ),
        Trap(
            name="PROF reads 0, energy is NaN now and then on one of two GPUs",
            bend=lambda page: (
                [one.with_labels(gpu="1", UUID="GPU-1") for one in without(UTIL)(exporter(busy=False))]
                + [
                    one.with_value(_now_and_then_nan(one.value)) if one.name == ENERGY else one
                    for one in without(UTIL)(with_series(ACTIVE, flat(0.0))(page))
                ]
            ),
            idle=NO_MEASUREMENT,
        ),
        Trap(name="PROF reads 0, a short burst of power", bend=short_burst),
        Trap(
            name="the energy counter wraps, PROF 0",
            bend=both(
                with_series(ACTIVE, flat(0.0)),
                without(UTIL),
                only(ENERGY, lambda one: one.with_value(fell_back(one.value))),
            ),
        ),
        Trap(
            name="one GPU of four silent, another one by two numbers",
            bend=four_gpus(("0", "GPU-0"), ("1", "GPU-1"), ("2", "GPU-2"), ("nvidia2", "GPU-2")),
            idle=Reason.METRICS_MISSING,
            machine_type="g6.12xlarge",
        ),
        Trap(
            name="one GPU of four silent, another one by two UUIDs",
            bend=four_gpus(("0", "GPU-0"), ("1", "GPU-1"), ("2", "GPU-2"), ("2", "MIG-2")),
            idle=Reason.METRICS_MISSING,
            machine_type="g6.12xlarge",
        ),
        Trap(
            name="a GPU with the labels of its pod, and without",
            bend=lambda page: page + [one.with_labels(pod="p") for one in page],
        ),
        Trap(
            name="four GPUs report",
            bend=lambda page: [one.with_labels(gpu=n, UUID=f"GPU-{n}") for n in "0123" for one in page],
            machine_type="g6.12xlarge",
        ),
        Trap(
            name="an unknown machine type, one GPU silent",
            bend=four_gpus(("0", "GPU-0")),
            idle=Reason.METRICS_MISSING,
            machine_type="x9.huge",
        ),
        Trap(
            name="MIG, the busy slice is not reported",
            bend=lambda page: [one for one in sliced(page) if one.name == ENERGY or one.labels["GPU_I_ID"] != "13"],
            idle=Reason.ACCELERATOR_UNKNOWN,
        ),
        Trap(name="hostname for Hostname", bend=relabelled),
        Trap(name="hostname for Hostname, within the window", bend=relabelled_late, idle=Reason.METRICS_MISSING),
        Trap(name="collects once a minute", bend=collected_each(60)),
        Trap(name="frozen exporter", bend=frozen, idle=NO_MEASUREMENT),
        Trap(name="exporter frozen since shortly before now", bend=frozen_late, idle=NO_MEASUREMENT),
        Trap(name="no energy counter", bend=without(ENERGY), idle=Reason.METRICS_MISSING),
        Trap(
            name="collects each 30 s",
            bend=only(ENERGY, lambda one: one.with_value(lambda at: one.value(at - at % 30))),
        ),
        Trap(
            name="work only just now",
            bend=lambda page: [
                one if one.name == ENERGY else one.with_value(at_work_late(one.value)) for one in page
            ],
        ),
    ],
    "engine": [
        Trap(
            name="counters were reset",
            bend=lambda page: [
                one.with_value(fell_back(one.value)) if one.name.endswith("_total") and one.name in COUNTERS else one
                for one in unseen_requests(page)
            ],
            idle=Reason.TOKENS_MOVED,
        ),
        Trap(
            name="engine restarted",
            bend=both(unseen_requests, with_series("process_start_time_seconds", flat(START.timestamp() - 600))),
            idle=Reason.WARMING_UP,
        ),
        Trap(
            name="engine restarted, by a clock that is hours behind",
            bend=both(
                counting_none,
                with_series(
                    "process_start_time_seconds",
                    lambda at: START.timestamp() - (5 * 3600 if at > 600 else 4 * 3600),
                ),
            ),
            idle=Reason.WARMING_UP,
        ),
        Trap(
            name="requests only wait (for a grammar, an adapter, a remote cache)",
            bend=only_waiting,
        ),
        Trap(name="two processes with an engine 0 each, one at work", bend=second_process),
        Trap(
            name="of two processes with an engine 0 each one does not report its queue",
            bend=both(without(WAITING), counting_none, second_process),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="of two models on one engine one counts no tokens",
            bend=both(unseen_requests, without(*COUNTERS), second_model),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="several engines, one was off the page for a while",
            bend=lambda _: (
                quiet_engine()
                + [one.with_value(removed(one.value, 760, 600)) if one.labels else one for one in engine(busy=False)]
            ),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="several engines, one is off the page since shortly before now",
            bend=lambda page: (
                quiet_engine()
                + [one.with_value(until(_idle_value(one), LATE)) if one.labels else one for one in page]
            ),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(name="scraped more often, then not", bend=scraped_more_often_once, idle=Reason.METRICS_MISSING),
        Trap(
            name="the queue reads -1 for a moment",
            bend=both(counting_none, only(WAITING, lambda one: one.with_value(blip(one.value, -1.0)))),
            idle=NO_MEASUREMENT,
        ),
        Trap(
            name="a request was aborted before its first token, the first to end so",
            bend=first_abort,
        ),
        Trap(
            name="several engines, one does not report running requests, and prefills",
            bend=both(counting_none, without(RUNNING), second_engine),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="a second process has not answered for longer than the window",
            bend=lambda _: [
                *engine(busy=False),
                Series(job="engine", name="up", value=flat(1.0), labels={"instance": "a"}),
                Series(job="engine", name="up", value=flat(0.0), labels={"instance": "b"}),
            ],
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="finished requests not finite",
            bend=both(counting_none, with_series(COUNTERS[2], flat(float("nan")))),
            idle=NO_MEASUREMENT,
        ),
        Trap(name="several engines, one at work", bend=second_engine),
        Trap(name="several engines, one is missing", bend=lost_engine, idle=Reason.METRICS_MISSING),
        Trap(name="requests between two scrapes", bend=unseen_requests),
        Trap(name="counters born with the first request", bend=born_late),
        Trap(
            name="gauge renamed",
            bend=only(RUNNING, lambda one: one.named("gpufleet_engine_running")),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="token counters renamed",
            bend=both(
                unseen_requests,
                only(
                    "gpufleet_engine_prompt_tokens_total",
                    lambda one: one.named("gpufleet_engine_request_prompt_tokens_total"),
                ),
                only(
                    "gpufleet_engine_generation_tokens_total",
                    lambda one: one.named("gpufleet_engine_request_generation_tokens_total"),
                ),
            ),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(name="names without colons", bend=rename_engine, idle=Reason.METRICS_MISSING),
        Trap(
            name="no start time (several API servers)",
            bend=without("process_start_time_seconds"),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(name="frozen page", bend=frozen, idle=NO_MEASUREMENT),
        Trap(name="page frozen since shortly before now", bend=frozen_late, idle=NO_MEASUREMENT),
        Trap(
            name="frozen page without a CPU counter",
            bend=both(frozen, without("process_cpu_seconds_total")),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="another model name within the window",
            bend=lambda page: (
                [one.with_value(until(_idle_value(one), LATE)) if one.labels else one for one in page]
                + [one.with_labels(model_name="n").with_value(since(one.value, LATE)) for one in page if one.labels]
            ),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="one engine of two reports NaN for all its work",
            bend=no_numbers(RUNNING, WAITING, *COUNTERS),
            idle=NO_MEASUREMENT,
        ),
        Trap(
            name="one engine of two reports NaN for its tokens",
            bend=no_numbers(*COUNTERS),
            idle=NO_MEASUREMENT,
        ),
        Trap(
            name="one engine of two reports NaN for its queue",
            bend=both(without(*COUNTERS[2:]), no_numbers(WAITING)),
            idle=NO_MEASUREMENT,
        ),
        Trap(
            name="the queue has vanished",
            bend=both(unseen_requests, only(WAITING, lambda one: one.with_value(until(one.value, 1500)))),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="one engine of two does not report its queue",
            bend=both(without(WAITING), second_engine),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(
            name="one engine of two counts no tokens",
            bend=both(unseen_requests, without(*COUNTERS), second_engine),
            idle=Reason.METRICS_MISSING,
        ),
        Trap(name="gauge reads NaN", bend=with_series(RUNNING, flat(float("nan"))), idle=NO_MEASUREMENT),
    ],
}


def _idle_value(one: Series) -> Value:
    return flat(one.value(SPAN) or 0.0) if one.name.endswith("_total") else flat(0.0)


def _now_and_then_nan(value: Value) -> Value:
    return lambda at: value(at) if at // STEP % 2 else float("nan")


def _hundredth(value: Value) -> Value:
    return lambda at: (value(at) or 0.0) / 100


def _hundredfold(value: Value) -> Value:
    return lambda at: (value(at) or 0.0) * 100


KNOWN = [(source, trap, busy) for source, traps in TRAPS.items() for trap in traps for busy in (True, False)]
NUMBERS = {(source, trap.name, busy): number for number, (source, trap, busy) in enumerate(KNOWN, 1)}
CASES = [
    pytest.param(source, trap, busy, id=f"{source}: {trap.name}, {'busy' if busy else 'idle'}")
    for source, trap, busy in KNOWN
]


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decision]:
    """One dry pass over an instance for each case, by instance."""
    fake, recorded = FakeFleet(), dict[str, Page]()
    for number, (source, trap, busy) in enumerate(KNOWN, 1):
        one = instance(number, machine_type=trap.machine_type)
        fake.instances[one.id] = one
        fake.agents[one.id] = READY
        (other,) = PAGES.keys() - {source}
        recorded[one.id] = PAGES[other](busy=False) + trap.bend(PAGES[source](busy=busy))
    fleet = document()
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    fake.targets["batch"] = Target(pool="batch", value=2, version=1)
    with prometheus(recorded, tmp_path_factory.mktemp("traps")) as store:
        plan = IdleWatchdog(fleet, replace(fake.ports(), metrics=store)).dry().plan
    return {decision.resource: decision for decision in plan.decisions}


@pytest.mark.parametrize(("source", "trap", "busy"), CASES)
def test_misleading_observations_neither_end_busy_nor_mark_unclear_instances(
    source: str, trap: Trap, busy: bool, decisions: dict[str, Decision]
) -> None:
    decision = decisions[instance(NUMBERS[source, trap.name, busy]).id]
    if busy:
        assert decision.action is Action.KEEP, decision
    else:
        assert decision.reason is trap.idle, decision
        assert (decision.action is Action.MARK) == (trap.idle is Reason.IDLE)
