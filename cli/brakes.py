"""`gpufleet keep|pause|resume|target|drain`: the hand brakes, each with an owner, a reason and an end."""

import getpass
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer
from sqlalchemy.engine import Engine

from app.adapters import FleetAgents
from app.errors import AppError, Code
from app.fleets import load
from app.ledgers import ledger_name, not_here
from app.wiring import agents_of, inventory_of, open_engine
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations, tags
from gpufleet.domain.activity import ConflictError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Outcome, OutcomeKind
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Cloud, Instance
from gpufleet.settings.document import FleetDocument, Pool
from ledger import decisions, operations
from ledger.fleet import FleetLedger
from ledger.schema import file_of
from watchdogs.brakes import until_when
from watchdogs.ports import Inventory
from watchdogs.spot import lifecycle
from watchdogs.spot.decide import WATCHDOG as SPOT

SPAN: Final = "4h"
REASON_MOST: Final = 500
"""Characters: it stands in one line of every plan."""
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
    document, known = _owner_of(scope, load(fleet))
    _pull(document, brake)
    until = brake.until
    if known is not None and until is not None:
        written = known.keep_tags(until)
        failed = inventory_of(document).tag([known.id] if written else [], written)
        if not written:
            there = known.tags[tags.KEEP_UNTIL]
            STDERR.print(f"its tag {tags.KEEP_UNTIL}={there} keeps it longer and stays", highlight=False)
        for error in failed.values():
            raise AppError(f"the brake is set in the ledger, but the tag could not be written: {error}")
    if as_json:
        print_json([_row(document, brake)])
        return
    STDOUT.print(f"{scope} is kept {until_when(until)}", highlight=False)
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
    chosen = documents if scope == "all" else [_owner_of(scope, documents)[0]]
    for document in chosen:
        _pull(document, brake)
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
    chosen = _braked(scope, documents, now)
    for document, _ in chosen:
        _must_be_theirs(document)
    rows: list[dict[str, Any]] = []
    left: list[Brake] = []
    for document, known in chosen:
        engine = open_engine(document)
        released, remaining = _release(engine, document, scope, known, (who, now))
        _try_boots_again(engine, document, [p for p in document.pools if scope in ("all", p.name)], who, now)
        rows.append(
            {
                "environment": document.environment,
                "scope": scope,
                "released": [_row(document, brake) for brake in released],
                "left": [_row(document, brake) for brake in remaining],
            }
        )
        left += remaining
        if known is not None:
            remove_keep(inventory_of(document), known.id)
    if as_json:
        print_json(rows)
        return
    count = sum(len(row["released"]) for row in rows)
    STDOUT.print(f"{count} brakes of {scope} released", highlight=False)
    for brake in left:
        STDERR.print(
            f"{brake.kind.sentence} {brake.scope} by {brake.owner} still holds {until_when(brake.until)}:"
            f" {brake.reason} (`gpufleet resume {brake.scope}`)",
            highlight=False,
            soft_wrap=True,
        )


def _release(
    engine: Engine, document: FleetDocument, scope: str, known: Instance | None, by: tuple[str, datetime]
) -> tuple[list[Brake], list[Brake]]:
    """The brakes of a scope that were released, and those that hold it all the same; of `all`, every one."""
    fleet = ledger_name(document)
    before = operations.brakes(engine, fleet, by[1])
    # one that a newer release pulled is released, too
    for kind in (*BrakeKind, *{brake.kind for brake in before if brake.scope == scope and not brake.kind.known}):
        operations.release_brakes(engine, fleet, kind, scope, by)
    after = operations.brakes(engine, fleet, by[1])
    gone = {brake.id for brake in before} - {brake.id for brake in after}
    wider = {"all"} if known is None else {"all", known.pool}
    return (
        [brake for brake in before if brake.id in gone],
        [brake for brake in after if scope == "all" or brake.scope in wider],
    )


def _row(document: FleetDocument, brake: Brake) -> dict[str, Any]:
    """A brake as programs read it."""
    return {
        "environment": document.environment,
        "kind": brake.kind.value,
        "scope": brake.scope,
        "owner": brake.owner,
        "reason": brake.reason,
        "since": brake.since.isoformat(timespec="seconds"),
        "until": None if brake.until is None else brake.until.isoformat(timespec="seconds"),
    }


def _try_boots_again(engine: Engine, document: FleetDocument, pools: Sequence[Pool], who: str, now: datetime) -> None:
    ledger = FleetLedger(engine, ledger_name(document), SPOT, who)
    for pool in pools:
        if pool.watchdogs.spot is not None:
            said = lifecycle.mended(pool.name, who)
            ledger.record_outcome(SPOT, Outcome(decision=said, kind=OutcomeKind.DONE, detail=said.detail), now)


def _braked(
    scope: str, documents: Sequence[FleetDocument], now: datetime
) -> Sequence[tuple[FleetDocument, Instance | None]]:
    """The fleets whose brakes of a scope are released, and the instance where it is there. Raises AppError."""
    if scope == "all":
        return [(document, None) for document in documents]
    try:
        return [_owner_of(scope, documents)]
    except AppError as error:
        # an instance's pause may outlive it, and a pool's the settings that named it
        left = [(document, None) for document in documents if scope in _scopes(document, now)]
        if error.code is not Code.WRONG_USE or not left:
            raise
        return left


def _scopes(document: FleetDocument, now: datetime) -> set[str]:
    _must_be_theirs(document)
    return {brake.scope for brake in operations.brakes(open_engine(document), ledger_name(document), now)}


def remove_keep(inventory: Inventory, instance: str) -> None:
    """Take the keep-until tag from an instance. Raises AppError where it stays: it would go on keeping it."""
    try:
        failed = inventory.untag([instance], [tags.KEEP_UNTIL])
    except OSError as error:
        failed = {instance: str(error)}
    for error in failed.values():
        raise AppError(
            f"the brakes of {instance} are released in the ledger, but its tag {tags.KEEP_UNTIL}, which keeps it too,"
            f" could not be removed: {error}"
        )


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
            "--reason, --for and --until-resumed belong to a pool and its target: name both", Code.WRONG_USE
        )
    documents = load(fleet)
    if pool is not None and not any(pool == known.name for document in documents for known in document.pools):
        raise AppError(f"{pool!r} is no pool of these fleets", Code.WRONG_USE)
    if pool is not None and value is not None:
        brake = _brake(BrakeKind.TARGET, pool, (reason or "", owner), _end(span, endless=endless))
        document, _ = _owner_of(pool, documents)
        _hold_target(document, brake, value)
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
    engine, fleet = open_engine(document, reading=True), ledger_name(document)
    found = operations.brakes(engine, fleet, datetime.now(UTC))
    held = {brake.scope: brake for brake in found if brake.acts_as(BrakeKind.TARGET)}
    rows: list[dict[str, Any]] = []
    for row in operations.targets(engine, fleet):
        last, brake = operations.target_moves(engine, fleet, row.pool)[-1], held.get(row.pool)
        until = None if brake is None else brake.until
        rows.append(
            {
                "environment": document.environment,
                "pool": row.pool,
                "target": row.value,
                "version": row.version,
                "changed_by": last.changed_by,
                "reason": last.reason,
                "at": last.at.isoformat(timespec="seconds"),
                "held_by": None if brake is None else brake.owner,
                "held_until": None if until is None else until.isoformat(timespec="seconds"),
            }
        )
    return rows


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
    document, known = _owner_of(instance, load(fleet))
    if known is None:
        raise AppError(f"{instance} is no instance id", Code.WRONG_USE)
    if known.environment is None:
        # its agent, if it has one, is not ours to give a token to
        raise AppError(f"{instance} belongs to no fleet: it cannot be drained from here")
    if deadline is None and known.pool not in {pool.name for pool in document.pools}:
        raise AppError(f"{instance} belongs to no pool of {document.environment}: give --deadline", Code.WRONG_USE)
    limit = _span(deadline) if deadline is not None else document.pool(known.pool or "").drain_deadline
    try:
        status = FleetAgents(agents_of(document)).drain(known, DrainOwner.PERSON, why, limit)
    except OSError as error:
        raise AppError(str(error)) from error
    if as_json:
        row = {"environment": document.environment, "instance": known.id, "phase": status.phase}
        print_json([row | {"reason": status.reason, "deadline": durations.render(limit)}])
        return
    STDOUT.print(f"{instance}: {status.phase}, {status.reason}", highlight=False, markup=False)


def _brake(kind: BrakeKind, scope: str, said: tuple[str, str | None], until: datetime | None) -> Brake:
    """A brake to be pulled; `said` is its reason and its owner as given. Raises AppError."""
    return Brake(
        kind=kind,
        scope=scope,
        owner=_who(said[1]),
        reason=_why(said[0]),
        since=datetime.now(UTC),
        until=until,
    )


def _pull(document: FleetDocument, brake: Brake) -> None:
    _must_be_theirs(document)
    operations.set_brake(open_engine(document), ledger_name(document), brake)


def _why(reason: str) -> str:
    if not reason.strip():
        raise AppError(f"--reason {reason!r} is empty: say why, others will wonder", Code.WRONG_USE)
    return _one_line("--reason", reason, REASON_MOST)


def _one_line(option: str, text: str, most: int) -> str:
    """Words that terminals, plans and every ledger show as they are. Raises AppError."""
    said = text.strip()
    if len(said) > most:
        raise AppError(f"{option} has {len(said)} characters: say it in {most}", Code.WRONG_USE)
    if not said.isprintable():
        raise AppError(f"{option} {said!r} is more than one line of printable text", Code.WRONG_USE)
    return said


def _must_be_theirs(document: FleetDocument) -> None:
    """A file made here, on a machine without watchdogs, would hold nobody: they read their own."""
    if (said := not_here(document)) is not None:
        raise AppError(
            f"{said}, so no watchdog of {document.environment} would see that: run this on the machine where they run"
            " (the control host)"
        )


def _hold_target(document: FleetDocument, brake: Brake, value: int) -> None:
    pool = brake.scope
    limits = document.pool(pool)
    if not limits.min <= value <= limits.max:
        raise AppError(
            f"target {value} of pool {pool} is outside {limits.min} to {limits.max}; change the settings to widen it",
            Code.WRONG_USE,
        )
    _must_be_theirs(document)
    engine = open_engine(document)
    seen = next(row for row in operations.targets(engine, ledger_name(document)) if row.pool == pool)
    try:
        operations.hold_target(engine, ledger_name(document), seen, value, brake)
    except ConflictError as error:
        raise AppError(f"{error}; look again (`gpufleet target {pool}`)") from error


def _say_if_unused(document: FleetDocument) -> None:
    """A dry pass makes a ledger, too: it keeps what was seen."""
    file = file_of(document.ledger_url)
    if file is not None and not decisions.any_made(open_engine(document), ledger_name(document)):
        STDERR.print(
            f"no pass with --apply has used the ledger {file} yet: if the watchdogs of {document.environment} run on"
            " another machine, this holds none of them: run it there",
            highlight=False,
            soft_wrap=True,
        )


def _owner_of(scope: str, documents: Sequence[FleetDocument]) -> tuple[FleetDocument, Instance | None]:
    """The fleet that a scope belongs to, and the instance when it is one. Raises AppError."""
    for document in documents:
        if scope in (pool.name for pool in document.pools) or scope in (rule.name for rule in document.orphans):
            return document, None
    if scope == "all":
        if len(documents) == 1:
            return documents[0], None
        raise AppError("`all` of several fleets: name one with --fleet", Code.WRONG_USE)
    for document in documents:
        try:
            found = inventory_of(document).instance(scope) if _may_be_instance(document, scope) else None
        except OSError as error:
            raise AppError(str(error)) from error
        # a machine of no fleet is whose rules may stop it
        of_nobody = found is not None and found.environment is None and bool(document.orphans)
        if found is not None and (found.environment == document.environment or of_nobody):
            return document, found
    names = ", ".join(pool.name for document in documents for pool in document.pools)
    raise AppError(f"{scope!r} is no pool ({names}) and no instance of these fleets", Code.WRONG_USE)


def _may_be_instance(document: FleetDocument, scope: str) -> bool:
    """AWS refuses to look for what is no id; on Google Cloud an instance's id is its name, which may be any."""
    return document.cloud is Cloud.GCP or scope.startswith("i-")


def _end(span: str | None, *, endless: bool) -> datetime | None:
    """When a brake ends; None: when somebody resumes. Raises AppError."""
    if endless:
        if span is not None:
            raise AppError(f"--for {span} and --until-resumed: choose one", Code.WRONG_USE)
        return None
    now = datetime.now(UTC)
    text = SPAN if span is None else span
    try:
        until = now + _span(text, "--for ")
    except OverflowError as error:
        raise AppError(f"--for {text}: ends after all time; name some days", Code.WRONG_USE) from error
    if until <= now:
        raise AppError(f"--for {text}: ends at once; name some minutes, as in 30m", Code.WRONG_USE)
    return until


def _span(text: str, option: str = "") -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(f"{option}{error}", Code.WRONG_USE) from error


def _who(owner: str | None) -> str:
    said = getpass.getuser() if owner is None else owner
    if not said.strip():
        raise AppError(f"--owner {said!r} is empty: say who, or leave it away", Code.WRONG_USE)
    return _one_line("--owner", said, OWNER_MOST)
