"""`gpufleet keep|pause|resume|target|drain`: manual brakes, each with an owner, a reason and an end."""

import getpass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from app import brakes
from app.errors import AppError, ErrorCode
from app.fleets import load
from app.ledgers import not_here
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.settings.document import FleetDocument
from watchdogs.brakes import until_when

SPAN: Final = "4h"
REASON_MOST: Final = 500
"""In characters, because a plan shows the reason in one line."""
OWNER_MOST: Final = 128
ForOption = Annotated[
    str | None, typer.Option("--for", help=f"How long, as in 90s, 30m, 4h, 7d. Default: {SPAN}.", show_default=False)
]
EndlessOption = Annotated[bool, typer.Option("--until-resumed", help="No end of its own: until `gpufleet resume`.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; shown in every plan.")]
OwnerOption = Annotated[str | None, typer.Option("--owner", help="Who; default: your user name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON to stdout.")]
ScopeArgument = Annotated[
    str, typer.Argument(help="An instance id, a pool's name (or a rule's for orphans), or `all`.")
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
    """Keep an instance, a pool or all from the idle watchdog. If that ends, an instance gets its tag, too."""
    brake = _brake(BrakeKind.KEEP, scope, (reason, owner), _end(span, endless=endless))
    document, known = brakes.owner_of(scope, load(fleet))
    if (note := brakes.keep(document, known, brake)) is not None:
        STDERR.print(note, highlight=False)
    if as_json:
        print_json([_row(document, brake)])
        return
    STDOUT.print(f"{scope} is kept {until_when(brake.until)}", highlight=False)
    _say_if_unused(document)


def pause(  # noqa: PLR0913 - a brake's options, and JSON
    scope: ScopeArgument,
    reason: ReasonOption,
    span: ForOption = None,
    endless: EndlessOption = False,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause the watchdogs of an instance, a pool or all, for a time or until `resume`."""
    brake = _brake(BrakeKind.PAUSE, scope, (reason, owner), _end(span, endless=endless))
    documents = load(fleet)
    chosen = documents if scope == "all" else [brakes.owner_of(scope, documents)[0]]
    for document in chosen:
        brakes.pull(document, brake)
    if as_json:
        print_json([_row(document, brake) for document in chosen])
        return
    STDOUT.print(f"watchdogs of {scope} are paused {until_when(brake.until)}", highlight=False)
    for document in chosen:
        _say_if_unused(document)


def resume(
    scope: ScopeArgument,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release the brakes of an instance, a pool or all: pauses, keeps, held targets. `all` is a scope of its own.

    Where boots kept failing, a pool's groups are asked again: somebody has looked at them.
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
    STDOUT.print(f"{count} brakes of {scope} released", highlight=False)
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
    pool: Annotated[str | None, typer.Argument(help="A pool's name; without it all targets are shown.")] = None,
    value: Annotated[int | None, typer.Argument(help="Ready replicas wanted.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; shown in every plan. Needed with N.")] = None,
    span: ForOption = None,
    endless: EndlessOption = False,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the pools' targets, or set one and hold it for a time.

    While it is held, scale leaves it as it is, within the pool's min and max, and idle ends nothing of the pool.
    """
    if value is None and (reason is not None or span is not None or endless):
        raise AppError(
            "--reason, --for and --until-resumed belong to a pool and its target: name both", ErrorCode.WRONG_USE
        )
    documents = load(fleet)
    if pool is not None and not any(pool == known.name for document in documents for known in document.pools):
        raise AppError(f"{pool!r} is no pool of these fleets", ErrorCode.WRONG_USE)
    if pool is not None and value is not None:
        brake = _brake(BrakeKind.TARGET, pool, (reason or "", owner), _end(span, endless=endless))
        document, _ = brakes.owner_of(pool, documents)
        brakes.hold_target(document, brake, value)
        if not as_json:
            _say_if_unused(document)
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
    if (said := not_here(document)) is not None:
        STDERR.print(f"{said}: these are the targets of the settings", highlight=False, soft_wrap=True)
    return brakes.targets(document)


def drain(  # noqa: PLR0913 - a brake's options, and JSON
    instance: Annotated[str, typer.Argument(help="Instance id.")],
    reason: ReasonOption,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="When it ends, requests or not. Default: the pool's.")
    ] = None,
    owner: OwnerOption = None,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask an instance's node agent to drain. It is not ended; there is no way back but a restart."""
    why = f"by hand, {_who(owner)}: {_why(reason)}"
    document, known = brakes.to_drain(instance, load(fleet), limited=deadline is not None)
    limit = _span(deadline) if deadline is not None else document.pool(known.pool or "").drain_deadline
    status = brakes.drain(document, known, why, limit, lambda text: STDERR.print(text, soft_wrap=True, markup=False))
    if as_json:
        row = {"environment": document.environment, "instance": known.id, "phase": status.phase}
        print_json([row | {"reason": status.reason, "deadline": durations.render(limit)}])
        return
    STDOUT.print(f"{instance}: {status.phase}, {status.reason}", highlight=False, markup=False)


def _brake(kind: BrakeKind, scope: str, said: tuple[str, str | None], until: datetime | None) -> Brake:
    """The brake to set. `said`: its reason and its owner as given. Raises AppError."""
    return Brake(
        kind=kind,
        scope=scope,
        owner=_who(said[1]),
        reason=_why(said[0]),
        since=datetime.now(UTC),
        until=until,
    )


def _why(reason: str) -> str:
    if not reason.strip():
        raise AppError(f"--reason {reason!r} is empty: say why, others will wonder", ErrorCode.WRONG_USE)
    return _one_line("--reason", reason, REASON_MOST)


def _one_line(option: str, text: str, most: int) -> str:
    """The text, if terminals, plans and every ledger can show it unchanged in one line. Raises AppError."""
    said = text.strip()
    if len(said) > most:
        raise AppError(f"{option} has {len(said)} characters: say it in {most}", ErrorCode.WRONG_USE)
    if not said.isprintable():
        raise AppError(f"{option} {said!r} is more than one line of printable text", ErrorCode.WRONG_USE)
    return said


def _say_if_unused(document: FleetDocument) -> None:
    if (said := brakes.unused_ledger(document)) is not None:
        STDERR.print(said, highlight=False, soft_wrap=True)


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
        raise AppError(f"--for {text}: ends after all time; name some days", ErrorCode.WRONG_USE) from error
    if until <= now:
        raise AppError(f"--for {text}: ends at once; name some minutes, as in 30m", ErrorCode.WRONG_USE)
    return until


def _span(text: str, option: str = "") -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(f"{option}{error}", ErrorCode.WRONG_USE) from error


def _who(owner: str | None) -> str:
    said = getpass.getuser() if owner is None else owner
    if not said.strip():
        raise AppError(f"--owner {said!r} is empty: say who, or leave it away", ErrorCode.WRONG_USE)
    return _one_line("--owner", said, OWNER_MOST)
