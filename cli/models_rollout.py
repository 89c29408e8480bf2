"""`gpufleet model rollout` and `rollback`: select the served revision, and roll it out in the pools."""

from typing import Annotated

import typer

from app.errors import AppError, ErrorCode
from app.fleets import load_one
from app.model_rollouts import change_pools, wait
from app.models import ModelRegistry
from app.stated_names import check_environment, check_model
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, print_json
from gpufleet.domain import durations

BucketOption = Annotated[
    str,
    typer.Option(
        "--bucket",
        help="URL of the bucket: s3://…, gs://…, or a folder. Default: $GPUFLEET_BUCKET.",
        envvar="GPUFLEET_BUCKET",
    ),
]
NameOption = Annotated[
    str, typer.Option("--name", callback=check_model, help="Name of the model: its files are in models/<name>.")
]
LimitOption = Annotated[
    str, typer.Option("--limit", help="Longest time for the change of one instance, for example 30m.")
]
WalkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet",
        help="URL of a fleet document; repeatable. The fleet's control host changes running instances of this model "
        "now, one at a time, and the command waits. Without it, no running instance changes.",
    ),
]
DirectOption = Annotated[
    bool,
    typer.Option(
        "--direct",
        help="Change the instances of --fleet from this machine, for a fleet without `gpufleet watch run --apply`. "
        "This requires access to the key that signs orders.",
    ),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option("--environment", help="Environment of the bucket. Required only before its first `pulumi up`."),
]


def rollout(
    name: NameOption,
    bucket: BucketOption,
    digest: Annotated[
        str | None,
        typer.Argument(
            help="Digest of the revision, or at least its first 12 characters. Default: the served revision, to "
            "continue its rollout."
        ),
    ] = None,
    fleet: WalkOption = None,
    direct: DirectOption = False,
    limit: LimitOption = "30m",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Select the revision that is served. With --fleet, running instances also change to it, one at a time.

    Instances download the new revision while they still serve the old one.

    The command writes the selection with your permissions. The control host reads it and cannot write it.

    If it is interrupted, run the same command again: it skips instances that already serve the revision.
    """
    registry = ModelRegistry(bucket, name)
    chosen = registry.served() if digest is None else registry.resolve(digest)
    if chosen is None:
        raise AppError(f"{registry.model}: no revision is served yet; give a digest", ErrorCode.WRONG_USE)
    _serve(registry, chosen, _RolloutOptions(fleet, limit, environment, as_json, direct), going_back=False)


def rollback(
    name: NameOption,
    bucket: BucketOption,
    fleet: WalkOption = None,
    direct: DirectOption = False,
    limit: LimitOption = "30m",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Select the revision that was served before. If interrupted, run the same command again to continue."""
    registry = ModelRegistry(bucket, name)
    history = registry.history()
    earlier = history.going_back_to or history.before(registry.served())
    if earlier is None:
        raise AppError(f"{registry.model}: no revision was served before this one")
    _serve(registry, earlier, _RolloutOptions(fleet, limit, environment, as_json, direct), going_back=True)


class _RolloutOptions:
    """The options of a rollout."""

    def __init__(  # noqa: PLR0913 - the options
        self, fleets: list[str] | None, limit: str, environment: str | None, as_json: bool, direct: bool
    ) -> None:
        try:
            self.limit = durations.parse(limit)
        except ValueError as error:
            raise AppError(f"--limit: {error}", ErrorCode.WRONG_USE) from error
        if environment is not None:
            check_environment(environment, "--environment")
        self.documents = [load_one(url) for url in fleets or []]
        self.environment, self.as_json, self.direct = environment, as_json, direct


def _serve(registry: ModelRegistry, digest: str, options: _RolloutOptions, *, going_back: bool) -> None:
    registry.check_approved(digest, options.documents, options.environment)
    before = registry.serve(
        digest,
        going_back=going_back and bool(options.documents),
        changes_running=bool(options.documents) and not options.direct,
    )
    if not options.as_json:
        past = before[:12] if before else "nothing"
        STDOUT.print(f"{registry.name}: {digest[:12]} is now served (before: {past})")
    changed: dict[str, int] = {}
    for document in options.documents:
        changed |= (change_pools if options.direct else wait)(registry.name, digest, document, options.limit, _note)
    if options.documents and going_back:
        # the rollback is complete only now; until here the same command would resume it
        registry.write_history(registry.history().with_served(None, None))
    if not options.documents:
        _note(_UNCHANGED.format(name=registry.name, bucket=registry.bucket))
    if options.as_json:
        print_json({"model": registry.name, "served": digest, "before": before, "changed": changed})


_UNCHANGED = (
    "New instances serve it. Running instances download it within a minute and continue to serve their own revision. "
    "To change them one at a time: `gpufleet model rollout --name {name} --bucket {bucket} --fleet URL`."
)


def _note(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False)
