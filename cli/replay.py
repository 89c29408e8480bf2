"""`gpufleet replay`: runs the watchdogs' decisions on recorded histories, and compares them with known rules."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from app.errors import AppError, ErrorCode
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations
from gpufleet.domain.parsed import is_map, unique_keys
from gpufleet.domain.policies import IdlePolicy, ScalePolicy, SpotPolicy
from gpufleet.settings.document import describe_problems
from gpufleet.settings.document.watchdogs import Watchdogs

PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="JSON file with the settings of one watchdog, as in `pools[].watchdogs.<name>` of a fleet document, or "
        "of several watchdogs by name. Default: the default settings.",
    ),
]


def _at_most(limit: float, unit: str) -> Callable[[float | None], float | None]:
    """Rejects larger values. The limits are generous, and sums of numbers below them stay finite."""

    def checked(value: float | None) -> float | None:
        if value is not None and not value <= limit:
            raise typer.BadParameter(f"{value:g} is too large: expected at most {limit:,.0f} {unit}")
        return value

    return checked


_SECONDS: Final = _at_most(1e6, "seconds")
_PRICE: Final = _at_most(1e6, "per hour")
_TOKENS: Final = _at_most(1e12, "tokens")
_INSTANCES: Final = _at_most(1e6, "instances")
ColdStart = Annotated[
    float, typer.Option("--cold-start", min=0, callback=_SECONDS, help="Seconds from launch until ready.")
]
_POLICIES: Final = {"idle": IdlePolicy, "spot": SpotPolicy, "scale": ScalePolicy}
_LONGEST: Final = timedelta(days=36_500)
_MAX_VALUE: Final = 1e12
Played = Mapping[str, Collection[str]]
"""By watchdog: the settings that affect a replay. The history and the rule do not use the others."""
_ALONE: Final[Played] = {"idle": IdlePolicy.__dataclass_fields__}
_POOLS: Final[Played] = {"idle": ("gpu_active_below",), "scale": ("headroom", "down_after", "schedule")}
_MARKET: Final[Played] = {"spot": SpotPolicy.__dataclass_fields__.keys() - {"fallback_after"}}
_REQUESTS: Final[Played] = {"scale": ("waiting_per_replica_above", "headroom", "down_after", "schedule")}
_OTHERS: Final[Played] = {"idle": ("gpu_active_below",)}
"""Settings that also apply to other rules: all rules use the same definition of a replica's work."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    replay = typer.Typer(no_args_is_help=True, help=__doc__, rich_markup_mode=None)
    replay.command("spot")(spot)
    replay.command("idle")(idle)
    replay.command("scale")(scale)
    app.add_typer(replay, name="replay")


def spot(
    availability: Annotated[
        Path,
        typer.Option(
            "--availability",
            help="History of the spot market: CSV, also as .gz, with time_s,zone,available[,spot_price].",
        ),
    ],
    target: Annotated[
        int,
        typer.Option("--target", min=1, callback=_INSTANCES, help="Number of ready replicas that the pool needs."),
    ],
    spare: Annotated[
        int, typer.Option("--spare", min=0, callback=_INSTANCES, help="Number of spot instances above the target.")
    ] = 1,
    cold_start: ColdStart = 390.0,
    on_demand_price: Annotated[
        float,
        typer.Option(
            "--on-demand-price", min=0, callback=_PRICE, help="Price of an on-demand instance, in USD an hour."
        ),
    ] = 1.0,
    spot_price: Annotated[
        float,
        typer.Option(
            "--spot-price",
            min=0,
            callback=_PRICE,
            help="Price of a spot instance, in USD an hour, for rows without a price.",
        ),
    ] = 0.3,
    rule: Annotated[
        str, typer.Option("--rule", help="Rule that decides: own (the spot watchdog) or skyserve.")
    ] = "own",
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recorded spot market against the spot watchdog, and print availability and cost.

    Each tick applies losses of capacity, then decisions until the rule requests no more changes, then readiness, then
    cost.
    """
    from replay import histories  # numpy and the reader are slow to import
    from replay import spot as market

    terms = market.SpotTerms(
        target=target,
        spare=spare,
        cold_start=cold_start,
        on_demand_price=on_demand_price,
        spot_price=spot_price,
    )
    known = _checked_rule(rule, market.NAMES)
    given = _policies(policy, "spot")
    _note_unused(policy, {"spot": given.spot}, _MARKET if known == "own" else _OTHERS)
    spot_policy = given.spot or SpotPolicy()
    with _readable():
        player = market.rule(known, spot_policy)
        score = market.play(histories.load_market(availability), terms, player)
    _show(score.answer(), as_json)


def idle(
    activity: Annotated[
        Path,
        typer.Option(
            "--activity",
            envvar="GPUFLEET_HISTORIES",
            help="History of replicas: CSV, also as .gz, with time_s,replica,gpu_active,requests_running,"
            "requests_waiting,tokens_total[,pool]; or a folder with runs.csv.gz and pool_demand.csv.gz, or with a"
            " subfolder idle_gpus that contains them.",
        ),
    ],
    pool_capacity: Annotated[
        float,
        typer.Option(
            "--pool-capacity",
            min=0.01,
            max=1,
            help="Work that one replica of a pool can do, as gpu_active from 0.01 to 1.",
        ),
    ] = 0.8,
    cold_start: ColdStart = 180.0,
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help="Rule that decides: own (the watchdogs), or a fixed timer from timer-15m to timer-90m. Histories "
            "with pools also have peak-root and queue-threshold, and do not have timer-45m.",
        ),
    ] = "own",
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded replicas: each separately, or, with a column `pool`, as pools whose replicas share their work.

    For separate replicas, `own` also prints net GPU-hours: the hours saved, less 30 or 60 minutes for each stop. It
    compares them with fixed timers, with the best timer in hindsight, and with perfect foresight. In this comparison
    the rule knows the price of a stop, including the cold start.

    Schedules use time_s. From 1e9 it is Unix time; smaller values count from Saturday, 2000-01-01, 00:00 UTC.
    """
    from replay import histories, net_savings, pools, runs, sizers
    from replay import idle as alone

    given = _policies(policy, "idle", "scale")
    rules, sizes = given.idle or IdlePolicy(), given.scale or ScalePolicy()
    with _readable():
        history = (
            runs.load_runs(activity)
            if activity.is_dir()
            else histories.load_activity(activity, rules.gpu_active_below)
        )
        nets: dict[str, dict[str, float | int]] = {}
        if history.pools is None:
            name, ours = _checked_rule(rule, alone.NAMES), _ALONE
            score = alone.play(history, alone.rule(name, history, rules, cold_start), cold_start)
            nets = net_savings.compared(history, rules, cold_start) if name == "own" else {}
        else:
            name, ours = _checked_rule(rule, sizers.NAMES), _POOLS
            score = pools.play(
                history, lambda pool: pools.rule(name, pool, rules, sizes, cold_start), cold_start, pool_capacity
            )
    _note_unused(policy, {"idle": given.idle, "scale": given.scale}, ours if name == "own" else _OTHERS)
    _show_nets(score.answer(), nets, as_json)


def scale(
    requests: Annotated[
        Path,
        typer.Option(
            "--requests",
            help="History of requests: CSV, also as .gz, with time_s,input_tokens,output_tokens or time_s,rate_rps.",
        ),
    ],
    tokens_per_second: Annotated[
        float,
        typer.Option(
            "--tokens-per-second-per-replica",
            min=0.001,
            callback=_TOKENS,
            help="Throughput of one replica, in input and output tokens a second.",
        ),
    ],
    tokens_per_request: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-request",
            min=0.001,
            callback=_TOKENS,
            help="Tokens of each request, for a history with rate_rps. Default: 1000.",
        ),
    ] = None,
    cold_start: ColdStart = 180.0,
    max_wait: Annotated[
        float,
        typer.Option(
            "--max-wait", min=0, callback=_SECONDS, help="Seconds that a token may wait; after that it is late."
        ),
    ] = 10.0,
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help="Rule that decides: own (the scale watchdog), timer-15m, timer-30m, timer-60m, peak-root or "
            "queue-threshold.",
        ),
    ] = "own",
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded requests against the scale watchdog, and print the number of replicas and of late tokens.

    Schedules use time_s. From 1e9 it is Unix time; smaller values count from Saturday, 2000-01-01, 00:00 UTC.
    """
    from replay import histories, sizers
    from replay import requests as line

    name = _checked_rule(rule, sizers.NAMES)
    given = _policies(policy, "scale")
    _note_unused(policy, {"scale": given.scale}, _REQUESTS if name == "own" else _OTHERS)
    rules = given.scale or ScalePolicy()
    terms = line.RequestTerms(tokens_per_second=tokens_per_second, cold_start=cold_start, max_wait=max_wait)
    with _readable():
        arrivals = histories.load_requests(requests, tokens_per_request)
        sizer = sizers.sizer(name, rules, cold_start, arrivals.begins)
        score = line.play(arrivals, terms, sizer, name)
    _show(score.answer(), as_json)


class _readable:  # noqa: N801 - reads as a word in `with`
    """Converts an unreadable history to AppError that names the line and the problem."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from replay.rows import TraceError

        if isinstance(error, TraceError):
            raise AppError(str(error)) from error


def _checked_rule(rule: str, names: tuple[str, ...]) -> str:
    if rule not in names:
        raise AppError(f"--rule {rule}: expected one of {', '.join(names)} for this history", ErrorCode.WRONG_USE)
    return rule


def _policies(path: Path | None, *names: str) -> Watchdogs:
    """The settings of the watchdogs `names` in a file. The file is read once, because it may be a pipe."""
    entries: Mapping[str, Any] = {} if path is None else _by_watchdog(path, names)
    try:
        given = Watchdogs.model_validate(entries)
    except ValidationError as error:
        problems = "; ".join(describe_problems(error, Watchdogs))
        raise AppError(f"--policy {path}: {problems}", ErrorCode.WRONG_USE) from error
    faults = [fault for name in names for fault in _unplayable(name, getattr(given, name))]
    if faults:
        raise AppError(f"--policy {path}: {'; '.join(faults)}", ErrorCode.WRONG_USE)
    return given


def _unplayable(watchdog: str, entry: IdlePolicy | SpotPolicy | ScalePolicy | None) -> Iterator[str]:
    """Values with a valid form that the computation cannot use."""
    for name in () if entry is None else type(entry).__dataclass_fields__:
        value: object = getattr(entry, name)
        if isinstance(value, timedelta) and value > _LONGEST:
            yield f"{watchdog}.{name}: expected at most {durations.render(_LONGEST)}, got {durations.render(value)}"
        if isinstance(value, timedelta) and not value and name == "window":
            yield f"{watchdog}.{name}: expected at least 1s, got 0s"
        if isinstance(value, float) and value and not 1 / _MAX_VALUE <= value <= _MAX_VALUE:
            yield f"{watchdog}.{name}: expected a value from {1 / _MAX_VALUE:g} to {_MAX_VALUE:g}, got {value:g}"


def _note_unused(
    path: Path | None, given: Mapping[str, IdlePolicy | SpotPolicy | ScalePolicy | None], played: Played
) -> None:
    """Report the settings in a file that this replay ignores, so that the user does not attribute the
    result to them.
    """
    names = [
        f"{watchdog}.{name}"
        for watchdog, entry in given.items()
        if entry is not None
        for name in type(entry).__dataclass_fields__
        if name not in played.get(watchdog, ()) and getattr(entry, name) != getattr(type(entry)(), name)
        if getattr(entry, name) != 0 or not name.startswith("max_stops")  # a budget of zero applies in pools, too
    ]
    if names:
        message = f"gpufleet: --policy {path}: {', '.join(names)}: this replay does not use it"
        STDERR.print(message, highlight=False, markup=False, soft_wrap=True)


def _by_watchdog(path: Path, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The file's entries by watchdog. A file with the keys of only one watchdog is that watchdog's entry."""
    try:
        written: Any = json.loads(
            path.read_text(encoding="utf-8"), parse_float=Decimal, object_pairs_hook=unique_keys
        )
    except (OSError, ValueError, RecursionError) as error:
        raise AppError(f"--policy {path}: {error}", ErrorCode.WRONG_USE) from error
    if not is_map(written):
        raise AppError(f"--policy {path}: expected a JSON object", ErrorCode.WRONG_USE)
    if written.keys() <= _POLICIES.keys():
        return written
    strange = {name: [key for key in written if key not in _POLICIES[name].__dataclass_fields__] for name in names}
    name = min(names, key=lambda name: len(strange[name]))
    if strange[name]:
        alone = " or ".join(f"only keys of {name}" for name in names)
        both = ", ".join(f'"{name}": {{…}}' for name in names)
        raise AppError(
            f"--policy {path}: {strange[name][0]!r} is not a key of {name}: write {alone}, or {{{both}}}",
            ErrorCode.WRONG_USE,
        )
    return {name: written}


def _show(answer: Mapping[str, str | int | float], as_json: bool) -> None:
    if as_json:
        print_json(dict(answer))
        return
    for name, value in answer.items():
        STDOUT.print(f"{name:24} {value}", highlight=False, markup=False)


def _show_nets(
    answer: Mapping[str, str | int | float], nets: Mapping[str, Mapping[str, float | int]], as_json: bool
) -> None:
    """The answer of one rule and, if present, net GPU-hours of several rules by price."""
    if as_json:
        print_json({**answer, "net_gpu_hours": nets} if nets else dict(answer))
        return
    _show(answer, as_json)
    for price, by_rule in nets.items():
        STDOUT.print(f"\nnet GPU-hours, if each stop costs {price}", highlight=False, markup=False)
        _show(by_rule, as_json)
