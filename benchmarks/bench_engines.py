"""Runs each engine's documented reports through the idle watchdog's checks, and through a map of names. Compares the
recorded pages of real engines with these reports.

`python -m benchmarks.bench_engines --seed 7 --runs 200` prints the tables for another seed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from benchmarks.__main__ import markdown
from benchmarks.comparison import results as comparison
from benchmarks.engine_judging import POLICY, Page, Verdict, counter_total, evidence, judge, naive, pages
from benchmarks.engine_runs import CONTEXT, WINDOW_S, Behaviour, Run, runs
from benchmarks.table import Table
from serving import metrics
from serving.engines import CONTRACTS
from serving.engines.contract import TokenError

RUNS: Final = 200
SEED: Final = 1
_EXACT: Final = 0.001
"""Highest relative error of tokens that is not flagged."""
KINDS: Final = tuple(kind for kind, contract in CONTRACTS.items() if contract.series)


@dataclass(slots=True, kw_only=True)
class Score:
    """The results of one engine's runs."""

    kind: str
    runs: int = 0
    verdicts: int = 0
    wrong_idle: int = 0
    """Verdicts `idle` while a request was open."""
    early_idle: int = 0
    """Verdicts `idle` although a request was open within the window."""
    late_busy: int = 0
    """Verdicts other than `idle` later than one window and two refreshes after the last work, of readable pages."""
    never_known: int = 0
    """Runs whose pages lack a name and that were judged `idle` nevertheless."""
    naive_wrong_idle: int = 0
    naive_wrong_runs: int = 0
    naive_runs_busy_at_end: int = 0
    exact_tokens: int = 0
    flagged_tokens: int = 0
    wrong_tokens: int = 0
    """Runs whose tokens are wrong by more than 0.1 % without a flag, or by more than the flag's bound."""
    examples: list[str] = field(default_factory=list[str])


def score(kind: str, count: int, seed: int) -> Score:
    """Judge that many runs of an engine."""
    total = Score(kind=kind)
    for number, run in enumerate(runs(kind, count, seed)):
        _add(total, run, f"{kind} run {number} ({run.behaviour})")
    return total


def _add(total: Score, run: Run, name: str) -> None:
    read_pages = pages(run)
    total.runs += 1
    readable = run.behaviour is not Behaviour.MISSING_NAMES
    last_work = max((second for second, is_open in enumerate(run.open) if is_open), default=0)
    last_start = max(page.started for page in read_pages)
    deadline = max(last_work, last_start) + WINDOW_S + 2 * max(run.interval_s, _lag_s(run.kind))
    naive_wrong = 0
    verdict_by_names = Verdict.UNKNOWN
    lag, shown_after = int(_lag_s(run.kind)), _shown_after_s(run.kind)
    for page in read_pages:
        now = int(page.at)
        if now < WINDOW_S or page.reading is None:
            continue
        total.verdicts += 1
        found = evidence(run, read_pages, now)
        verdict = judge(found, now)
        # a request that is younger than the engine's fastest refresh is on no page yet
        is_open = all(run.open[max(0, now - shown_after) : now + 1])
        if verdict is Verdict.IDLE:
            if not readable:
                total.never_known += 1
                total.examples.append(f"{name}: idle at {now} s, on a page that lacks a name")
            if is_open:
                total.wrong_idle += 1
                total.examples.append(f"{name}: idle at {now} s while a request is open")
            elif any(run.open[now - WINDOW_S + 2 * run.interval_s : now - lag]):
                total.early_idle += 1
                total.examples.append(f"{name}: idle at {now} s, work within the window")
        elif readable and now > deadline and found is not None and (found.coverage or 0) >= POLICY.coverage:
            total.late_busy += 1
            total.examples.append(f"{name}: {verdict} at {now} s, last work at {last_work} s, {found}")
        verdict_by_names = naive(run, read_pages, now)
        naive_wrong += verdict_by_names is Verdict.IDLE and is_open
    if readable:
        total.examples += (f"{name}: the report never shows {lacking}" for lacking in _lacking(run, read_pages))
    total.naive_wrong_idle += naive_wrong
    total.naive_wrong_runs += naive_wrong > 0
    total.naive_runs_busy_at_end += verdict_by_names is Verdict.BUSY
    _add_tokens(total, run, read_pages, name)


def _lacking(run: Run, read_pages: Sequence[Page]) -> list[str]:
    """Return the names of the evidence that no page has: verdicts without them are unknown, not wrong."""
    contract = CONTRACTS[run.kind]
    shown = {metric for page in read_pages if page.reading is not None for metric in page.reading.values}
    used = {*contract.evidence.work, *contract.evidence.idle} - shown
    return sorted(series.name for series in contract.series if series.measures in used)


def _lag_s(kind: str) -> float:
    """The longest refresh of the numbers that this engine's evidence uses, in seconds."""
    contract = CONTRACTS[kind]
    used = [one.lag for one in contract.series if one.measures in contract.evidence.idle]
    return max(used, default=timedelta(0)).total_seconds()


def _shown_after_s(kind: str) -> int:
    """The fastest refresh of a number that shows a running request, in seconds."""
    contract = CONTRACTS[kind]
    if metrics.NODE_ENGINE_REQUESTS in contract.evidence.work:
        return 0
    shown = [one for one in contract.series if one.measures in contract.evidence.work and not one.zero_while_busy]
    return int(min(one.lag for one in shown).total_seconds())


def _add_tokens(total: Score, run: Run, read_pages: Sequence[Page], name: str) -> None:
    """Compare the tokens that the fleet counts with the truth.

    The flag: requests that the router sent and the engine did not record, and those that their clients left unless
    the contract states that only tokens after the last scrape can be missing. The longest context bounds the tokens
    of each.
    """
    readings = [page.reading for page in read_pages if page.reading is not None]
    answered = [reading.values for reading in readings]
    truth = run.prompt + run.output
    counted = sum(counter_total(answered, metric) for metric in (metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS))
    unrecorded = max(0.0, run.requests - counter_total(answered, metrics.REQUEST_SUCCESS))
    if set(CONTRACTS[run.kind].tokens.errors) != {TokenError.AFTER_LAST_SCRAPE}:
        unrecorded += run.cut
    if any(reading.without_tokens for reading in readings):
        unrecorded = float(run.requests)
    error = abs(counted - truth)
    if unrecorded:
        total.flagged_tokens += 1
        is_right = error <= unrecorded * CONTEXT
    else:
        total.exact_tokens += 1
        is_right = error <= _EXACT * truth
    if not is_right:
        total.wrong_tokens += 1
        total.examples.append(f"{name}: {counted:.0f} tokens of {truth}, {unrecorded:.0f} requests unrecorded")


def table(scores: Sequence[Score], seed: int) -> Table:
    """Return the results of all engines."""
    rows = [
        (
            CONTRACTS[one.kind].title,
            str(one.runs),
            str(one.verdicts),
            str(one.wrong_idle + one.early_idle + one.never_known),
            str(one.late_busy),
            f"{one.exact_tokens} / {one.flagged_tokens} / {one.wrong_tokens}",
            f"{one.naive_wrong_idle} in {one.naive_wrong_runs}",
            str(one.naive_runs_busy_at_end),
        )
        for one in scores
    ]
    return Table(
        title=f"Evidence of engines, by contract and by a map of names (seed {seed})",
        columns=(
            "engine",
            "runs",
            "verdicts",
            "wrong idle",
            "late",
            "tokens exact / flagged / wrong",
            "names: wrong idle in runs",
            "names: never idle",
        ),
        rows=tuple(rows),
        notes=(
            "A run is one of ten behaviours of an engine that reports as its source documents. Wrong idle: `idle` "
            "while a request is open, within a window of work, or on a page that lacks a name. Late: not `idle` one "
            "window and two refreshes after the last work. Tokens are exact to 0.1 %, or flagged with a bound that "
            "holds: the requests that the engine did not record, times the longest context.",
        ),
    )


def run() -> Iterator[Table]:
    """Yield the table of 200 runs of each engine, and that of real engines."""
    yield table([score(kind, RUNS, SEED) for kind in KINDS], SEED)
    yield comparison.table(comparison.of_recorded())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the results for a seed. Return 1 if a verdict or a token count is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_engines", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--runs", type=int, default=RUNS, help="for each engine")
    parser.add_argument("--engine", choices=KINDS, action="append")
    given = parser.parse_args(arguments)
    scores: list[Score] = []
    for kind in given.engine or KINDS:
        scores.append(score(kind, given.runs, given.seed))
        print(f"{kind}: {scores[-1].verdicts} verdicts", file=sys.stderr)
    real = comparison.of_recorded()
    print(markdown(table(scores, given.seed)))
    print(markdown(comparison.table(real)))
    examples = [example for one in scores for example in one.examples]
    examples += [f"{one.kind}, {one.subject}: {line}" for one in real for line in one.differences]
    for example in examples:
        print(example)
    return 1 if examples else 0


if __name__ == "__main__":
    sys.exit(main())
