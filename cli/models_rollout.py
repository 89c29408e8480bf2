"""`gpufleet model rollout` and `rollback`: select the served revision, and roll it out in the pools."""

from typing import Annotated

import typer

from app.errors import AppError, ErrorCode
from app.fleets import load_one
from app.model_rollouts import wait, walk
from app.models import ModelRegistry
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations

BucketOption = Annotated[
    str, typer.Option("--bucket", help="URL of the bucket: s3://…, gs://…, or a folder.", envvar="GPUFLEET_BUCKET")
]
NameOption = Annotated[str, typer.Option("--name", help="The model's name in the bucket: models/<name>.")]
LimitOption = Annotated[str, typer.Option("--limit", help="Longest time for one instance to change.")]
WalkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet",
        help="URL of a fleet document; repeatable. Its control host changes the pools of this model now, one "
        "instance at a time, and the command waits. Without it nothing that runs changes.",
    ),
]
DirectOption = Annotated[
    bool,
    typer.Option(
        "--direct",
        help="Change the instances of --fleet from here, for fleets without `gpufleet watch run --apply`. "
        "Needs the key that signs orders.",
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
    direct: DirectOption = False,
    limit: LimitOption = "30m",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a revision: instances fetch it beside the old one; with --fleet they change to it one after the other.

    Which one is served is written with your rights; the control host follows, and cannot write it.

    Killed or stopped half-way, the same command goes on: those that serve it already are left alone.
    """
    shelf = ModelRegistry(bucket, name)
    chosen = shelf.served() if digest is None else shelf.resolve(digest)
    if chosen is None:
        raise AppError(f"{shelf.model}: nothing is served yet; name a digest", ErrorCode.WRONG_USE)
    _to(shelf, chosen, _Way(fleet, limit, environment, as_json, direct), going_back=False)


def rollback(
    name: NameOption,
    bucket: BucketOption,
    fleet: WalkOption = None,
    direct: DirectOption = False,
    limit: LimitOption = "30m",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the revision before the one that is served. Killed half-way, the same command goes on with it."""
    shelf = ModelRegistry(bucket, name)
    history = shelf.history()
    earlier = history.going_back_to or history.before(shelf.served())
    if earlier is None:
        raise AppError(f"{shelf.model}: no revision was served before this one")
    _to(shelf, earlier, _Way(fleet, limit, environment, as_json, direct), going_back=True)


class _Way:
    """The options of a rollout."""

    def __init__(  # noqa: PLR0913 - the options
        self, fleets: list[str] | None, limit: str, environment: str | None, as_json: bool, direct: bool
    ) -> None:
        try:
            self.limit = durations.parse(limit)
        except ValueError as error:
            raise AppError(f"--limit: {error}", ErrorCode.WRONG_USE) from error
        self.documents = [load_one(url) for url in fleets or []]
        self.environment, self.as_json, self.direct = environment, as_json, direct


def _to(shelf: ModelRegistry, digest: str, way: _Way, *, going_back: bool) -> None:
    shelf.check_approved(digest, way.documents, way.environment)
    before = shelf.serve(
        digest,
        going_back=going_back and bool(way.documents),
        changes_running=bool(way.documents) and not way.direct,
    )
    if not way.as_json:
        past = before[:12] if before else "nothing"
        STDOUT.print(f"{shelf.name}: {digest[:12]} is served from now on (before: {past})")
    changed: dict[str, int] = {}
    for document in way.documents:
        changed |= (walk if way.direct else wait)(shelf.name, digest, document, way.limit, _say)
    if way.documents and going_back:
        # the rollback is complete only now; until here the same command would resume it
        shelf.write_history(shelf.history().with_served(None, None))
    if not way.documents:
        _say(_UNCHANGED.format(name=shelf.name, bucket=shelf.bucket))
    if way.as_json:
        print_json({"model": shelf.name, "served": digest, "before": before, "changed": changed})


_UNCHANGED = (
    "Instances that boot from now on serve it. Those that run fetch it beside theirs within a minute and go on with "
    "theirs: change them one at a time with `gpufleet model rollout --name {name} --bucket {bucket} --fleet URL`."
)


def _say(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False)
