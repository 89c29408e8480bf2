"""`gpufleet keep|pause|resume|target|drain`: manual brakes, each with an owner, a reason and an end."""

import getpass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from app import brakes
from app.errors import AppError, ErrorCode
from app.fleets import load, pool_of
from app.ledgers import not_here
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.settings.document import FleetDocument
from watchdogs.brakes import until_when

SPAN: Final = "4h"
MAX_REASON_CHARS: Final = 500
"""In characters, because a plan shows the reason in one line."""
MAX_OWNER_CHARS: Final = 128
ForOption = Annotated[
    str | None,
    typer.Option(
        "--for", help=f"Time until it ends, for example 90s, 30m, 4h or 7d. Default: {SPAN}.", show_default=False
    ),
]
EndlessOption = Annotated[
    bool, typer.Option("--until-resumed", help="Set no end time: it applies until `gpufleet resume`.")
]
ReasonOption = Annotated[
    str,
    typer.Option("--reason", help=f"Why, in one line of at most {MAX_REASON_CHARS} characters. Every plan shows it."),
]
OwnerOption = Annotated[
    str | None, typer.Option("--owner", help="Person who is responsible for it. Default: your user name.")
]
ScopeArgument = Annotated[
    str, typer.Argument(help="An instance id, the name of a pool or of an `orphans` rule, or `all`.")
]


def register(app: typer.Typer) -> None:
    app.command("keep")(keep)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("target")(target)
    app.command("drain")(drain)


def keep(  # noqa: PLR0913 - a brake's options, and JSON
    scope: ScopeArgument,
    reason: ReasonOption,
    span: ForOption = None,
    endless: EndlessOption = False,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Protect an instance, a pool or `all` from the idle watchdog, for a time or until `gpufleet resume`.

    With an end time, an instance also gets the tag keep-until.
    """
    brake = _brake(BrakeKind.KEEP, scope, (reason, owner), _end(span, endless=endless))
    document, known = brakes.owner_of(scope, load(fleet))
    if (note := brakes.keep(document, known, brake)) is not None:
        STDERR.print(note, highlight=False)
    if as_json:
        print_json([_row(document, brake)])
        return
    STDOUT.print(f"{scope} is kept {until_when(brake.until)}", highlight=False)
    _warn_if_unused(document)


def pause(  # noqa: PLR0913 - a brake's options, and JSON
    scope: ScopeArgument,
    reason: ReasonOption,
    span: ForOption = None,
    endless: EndlessOption = False,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause all watchdogs for an instance, a pool or `all`, for a time or until `gpufleet resume`."""
    brake = _brake(BrakeKind.PAUSE, scope, (reason, owner), _end(span, endless=endless))
    documents = load(fleet)
    chosen = documents if scope == "all" else [brakes.owner_of(scope, documents)[0]]
    for document in chosen:
        brakes.set_brake(document, brake)
    if as_json:
        print_json([_row(document, brake) for document in chosen])
        return
    STDOUT.print(f"watchdogs of {scope} are paused {until_when(brake.until)}", highlight=False)
    for document in chosen:
        _warn_if_unused(document)


def resume(
    scope: ScopeArgument,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release the brakes of an instance, a pool or `all`: pauses, keeps and held targets.

    `all` releases only brakes that were set with the scope `all`. For a pool, the spot watchdog also asks again for
    instances in groups where boots failed repeatedly.
    """
    now = datetime.now(UTC)
    who, documents = _who(owner), load(fleet)
    done = brakes.release(scope, documents, who, now)
    if as_json:
        print_json(
            [
                {
                    "environment": one.document.environment,
                    "scope": scope,
                    "released": [_row(one.document, brake) for brake in one.released],
                    "left": [_row(one.document, brake) for brake in one.left],
                }
                for one in done
            ]
        )
        return
    count = sum(len(one.released) for one in done)
    STDOUT.print(f"{count} brake{'s' * (count != 1)} of {scope} released", highlight=False)
    for brake in (brake for one in done for brake in one.left):
        STDERR.print(
            f"{brake.kind.sentence} {brake.scope} by {brake.owner} still holds {until_when(brake.until)}:"
            f" {brake.reason} (`gpufleet resume {brake.scope}`)",
            highlight=False,
            soft_wrap=True,
        )


def _row(document: FleetDocument, brake: Brake) -> dict[str, Any]:
    """A brake as JSON."""
    return {
        "environment": document.environment,
        "kind": brake.kind.value,
        "scope": brake.scope,
        "owner": brake.owner,
        "reason": brake.reason,
        "since": brake.since.isoformat(timespec="seconds"),
        "until": None if brake.until is None else brake.until.isoformat(timespec="seconds"),
    }


def target(  # noqa: PLR0913 - a brake's options, and JSON
    pool: Annotated[
        str | None, typer.Argument(help="Name of a pool. Default: show the targets of all pools.")
    ] = None,
    value: Annotated[int | None, typer.Argument(help="The target: the number of ready replicas to have.")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why. Required with a target; every plan shows it.")
    ] = None,
    span: ForOption = None,
    endless: EndlessOption = False,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the targets of pools, or set the target of one pool and hold it for a time.

    A target is between the pool's min and max. While it is held, the scale watchdog does not change it, and the idle
    watchdog does not terminate instances of the pool.
    """
    if value is None and (reason is not None or span is not None or endless):
        raise AppError("--reason, --for and --until-resumed need a pool and a target: give both", ErrorCode.WRONG_USE)
    if value is not None and reason is None:
        raise AppError("--reason is missing: write why; every plan shows it", ErrorCode.WRONG_USE)
    documents = load(fleet)
    if pool is not None:
        pool_of(documents, pool)
    if pool is not None and value is not None:
        brake = _brake(BrakeKind.TARGET, pool, (reason or "", owner), _end(span, endless=endless))
        document, _ = brakes.owner_of(pool, documents)
        brakes.hold_target(document, brake, value)
        if not as_json:
            _warn_if_unused(document)
    rows = [row for document in documents for row in _targets(document) if pool in (None, row["pool"])]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        end = f"; held by {row['held_by']} until {row['held_until'] or '`gpufleet resume`'}" if row["held_by"] else ""
        STDOUT.print(
            f"{row['pool']}: {row['target']} (version {row['version']}, by {row['changed_by']} at {row['at']}:"
            f" {row['reason']}{end})",
            highlight=False,
            soft_wrap=True,
        )


def _targets(document: FleetDocument) -> list[dict[str, Any]]:
    if (missing := not_here(document)) is not None:
        STDERR.print(f"{missing}: these are the targets of the settings", highlight=False, soft_wrap=True)
    return brakes.targets(document)


def drain(  # noqa: PLR0913 - a brake's options, and JSON
    instance: Annotated[str, typer.Argument(help="Instance id.")],
    reason: ReasonOption,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            help="Longest time for running requests, for example 5m; longer ones are cut off. Default: the pool's.",
        ),
    ] = None,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask an instance's node agent to drain: it finishes running requests and accepts no new ones.

    The instance is not terminated. Only a restart makes it accept requests again.
    """
    why = f"by hand, {_who(owner)}: {_why(reason)}"
    document, known = brakes.to_drain(instance, load(fleet), limited=deadline is not None)
    limit = _span(deadline) if deadline is not None else document.pool(known.pool or "").drain_deadline
    status = brakes.drain(document, known, why, limit, lambda text: STDERR.print(text, soft_wrap=True, markup=False))
    if as_json:
        row = {"environment": document.environment, "instance": known.id, "phase": status.phase}
        print_json([row | {"reason": status.reason, "deadline": durations.render(limit)}])
        return
    STDOUT.print(f"{instance}: {status.phase}, {status.reason}", highlight=False, markup=False)


def _brake(kind: BrakeKind, scope: str, given: tuple[str, str | None], until: datetime | None) -> Brake:
    """The brake to set. `given`: values of --reason and --owner. Raises AppError."""
    reason, owner = given
    return Brake(
        kind=kind,
        scope=scope,
        owner=_who(owner),
        reason=_why(reason),
        since=datetime.now(UTC),
        until=until,
    )


def _why(reason: str) -> str:
    if not reason.strip():
        raise AppError(f"--reason {reason!r} is empty: write why; every plan shows it", ErrorCode.WRONG_USE)
    return _one_line("--reason", reason, MAX_REASON_CHARS)


def _one_line(option: str, text: str, most: int) -> str:
    """The text, if terminals, plans and every ledger can show it unchanged in one line. Raises AppError."""
    line = text.strip()
    if len(line) > most:
        raise AppError(f"{option} has {len(line)} characters: write at most {most}", ErrorCode.WRONG_USE)
    if not line.isprintable():
        raise AppError(f"{option} {line!r}: write one line of printable text", ErrorCode.WRONG_USE)
    return line


def _warn_if_unused(document: FleetDocument) -> None:
    """Print a warning if no watchdog reads this ledger."""
    if (warning := brakes.unused_ledger(document)) is not None:
        STDERR.print(warning, highlight=False, soft_wrap=True)


def _end(span: str | None, *, endless: bool) -> datetime | None:
    """When a brake ends; None: it ends with `gpufleet resume`. Raises AppError."""
    if endless:
        if span is not None:
            raise AppError(f"--for {span} and --until-resumed: choose one", ErrorCode.WRONG_USE)
        return None
    now = datetime.now(UTC)
    text = SPAN if span is None else span
    try:
        until = now + _span(text, "--for ")
    except OverflowError as error:
        raise AppError(f"--for {text}: too long; give some days, for example 7d", ErrorCode.WRONG_USE) from error
    if until <= now:
        raise AppError(f"--for {text}: ends immediately; give some minutes, for example 30m", ErrorCode.WRONG_USE)
    return until


def _span(text: str, option: str = "") -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(f"{option}{error}", ErrorCode.WRONG_USE) from error


def _who(owner: str | None) -> str:
    name = getpass.getuser() if owner is None else owner
    if not name.strip():
        raise AppError(f"--owner {name!r} is empty: write a name, or leave the option out", ErrorCode.WRONG_USE)
    return _one_line("--owner", name, MAX_OWNER_CHARS)
