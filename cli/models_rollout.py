"""`gpufleet model rollout` and `rollback`: which revision is served, and the way of it through the pools."""

import time
from typing import Annotated

import typer

from app.errors import AppError, Code
from app.fleets import load_one
from app.models import Shelf
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations
from gpufleet.settings.document import FleetDocument

BucketOption = Annotated[
    str, typer.Option("--bucket", help="URL of the bucket: s3://…, gs://…, or a folder.", envvar="GPUFLEET_BUCKET")
]
NameOption = Annotated[str, typer.Option("--name", help="The model's name in the bucket: models/<name>.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
LimitOption = Annotated[str, typer.Option("--limit", help="Longest time for one instance to change.")]
WalkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet",
        help="URL of a fleet document; repeatable. Its pools of this model change now, one instance at a time. "
        "Without it nothing that runs changes.",
    ),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option(
        "--environment", help="Which environment the bucket is of; asked only before its first `pulumi up`."
    ),
]


def rollout(
    name: NameOption,
    bucket: BucketOption,
    digest: Annotated[
        str | None,
        typer.Argument(
            help="The revision's digest, or how it begins (12 characters). Default: go on with the served."
        ),
    ] = None,
    fleet: WalkOption = None,
    limit: LimitOption = "30m",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a revision: instances fetch it beside the old one; with --fleet they change to it one after the other.

    Killed or stopped half-way, the same command goes on: those that serve it already are left alone.
    """
    shelf = Shelf(bucket, name)
    chosen = shelf.served() if digest is None else shelf.resolve(digest)
    if chosen is None:
        raise AppError(f"{shelf.model}: nothing is served yet; name a digest", Code.WRONG_USE)
    _to(shelf, chosen, _Way(fleet, limit, environment, as_json), going_back=False)


def rollback(
    name: NameOption,
    bucket: BucketOption,
    fleet: WalkOption = None,
    limit: LimitOption = "30m",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the revision before the one that is served. Killed half-way, the same command goes on with it."""
    shelf = Shelf(bucket, name)
    history = shelf.history()
    earlier = history.going_back_to or history.before(shelf.served())
    if earlier is None:
        raise AppError(f"{shelf.model}: no revision was served before this one")
    _to(shelf, earlier, _Way(fleet, limit, environment, as_json), going_back=True)


class _Way:
    """How to go, as the user said it."""

    def __init__(self, fleets: list[str] | None, limit: str, environment: str | None, as_json: bool) -> None:
        try:
            self.limit = durations.parse(limit)
        except ValueError as error:
            raise AppError(f"--limit: {error}", Code.WRONG_USE) from error
        self.documents = [load_one(url) for url in fleets or []]
        self.environment, self.as_json = environment, as_json


def _to(shelf: Shelf, digest: str, way: _Way, *, going_back: bool) -> None:
    shelf.check_approved(digest, way.documents, way.environment)
    before = shelf.serve(digest, going_back=going_back and bool(way.documents))
    if not way.as_json:
        past = before[:12] if before else "nothing"
        STDOUT.print(f"{shelf.name}: {digest[:12]} is served from now on (before: {past})")
    changed = {pool: count for document in way.documents for pool, count in _walk(shelf, digest, document, way)}
    if way.documents and going_back:
        # only now is the way back over; until here the same command would go on with it
        shelf.write_history(shelf.history().with_served(None, None))
    if not way.documents:
        _say(_UNCHANGED.format(name=shelf.name, bucket=shelf.bucket))
    if way.as_json:
        print_json({"model": shelf.name, "served": digest, "before": before, "changed": changed})


_UNCHANGED = (
    "Instances that boot from now on serve it. Those that run fetch it beside theirs within a minute and go on with "
    "theirs: change them one at a time with `gpufleet model rollout --name {name} --bucket {bucket} --fleet URL`."
)


def _walk(shelf: Shelf, digest: str, document: FleetDocument, way: _Way) -> list[tuple[str, int]]:
    """Let every pool of the model change, one instance at a time. Raises AppError where it stops."""
    # only here: what asks clouds takes a second to import
    from app.wiring import agents_of, inventory_of
    from gpufleet.domain.activity import CloudError
    from serving.revisions import PoolRollout, RolloutError, Walk

    pools = [pool for pool in document.pools if pool.model == f"models/{shelf.name}"]
    if not pools:
        _say(f"{document.environment}: no pool serves models/{shelf.name}, so nothing changes there")
        return []
    inventory, agents = inventory_of(document), agents_of(document)
    changed: list[tuple[str, int]] = []
    for pool in pools:
        walk = Walk(
            rollout=PoolRollout(pool=pool.name, floor=pool.min, limit=way.limit),
            instances=lambda pool=pool: [one for one in inventory.instances() if one.pool == pool.name and one.alive],
            agents=agents,
            say=_say,
            clock=time.monotonic,
            sleep=time.sleep,
        )
        try:
            changed.append((pool.name, walk.run(digest)))
        except (RolloutError, CloudError) as error:
            raise AppError(str(error)) from error
        _say(f"{pool.name}: {changed[-1][1]} instances changed")
    return changed


def _say(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False)
