"""`gpufleet model`: models in a bucket by content, their approvals, and the served revision."""

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from app.errors import AppError
from app.model_sources import Fetched, open_source
from app.models import ModelRegistry
from app.stores import open_place
from cli.models_rollout import BucketOption, NameOption, rollback, rollout
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, note, print_json
from serving.cache import approval, publish
from serving.cache.approval import Approval
from serving.cache.manifest import Manifest, ManifestError, describe

SourceArgument = Annotated[
    str,
    typer.Argument(
        help="The model: a folder in Hugging Face's layout (safetensors), s3://…, gs://…, hf://OWNER/NAME[@REVISION] "
        "(needs the extra `hub`), or MLflow's models:/NAME/VERSION or runs:/… (needs the extra `mlflow`)."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Models in a bucket: add, list, approve, roll out, roll back.", no_args_is_help=True)
    group.command("add")(add)
    group.command("ls")(ls)
    group.command("show")(show)
    group.command("approve")(approve)
    group.command("rollout")(rollout)
    group.command("rollback")(rollback)
    app.add_typer(group, name="model")


def add(
    source: SourceArgument,
    name: NameOption,
    bucket: BucketOption,
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="Name of the revision, for people. Default: the name that the source uses."),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence", help="Licence to record in the manifest. Default: the licence that the hub states."
        ),
    ] = None,
    noted: Annotated[
        str | None, typer.Option("--source", help="Origin to record in the manifest. Default: the source's URL.")
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option("--scratch", help="Folder with free space for the download of a model from a URL."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a model to the bucket. Files with the same content are stored once. It is not served before `rollout`."""
    place = open_place(bucket)
    with open_source(source, scratch, _note) as found:
        try:
            facts = _facts(found.folder, licence or found.licence, noted or found.source)
            manifest = describe(found.folder, name=name, revision=revision or found.revision, facts=facts)
            _check_expected(manifest, found)
            fresh = publish.add(place.writer, found.folder, manifest, prefix=place.key("models"), announce=_note)
        except (ManifestError, OSError) as error:
            raise AppError(f"{source}: {error}") from error
    if as_json:
        print_json({**_row(manifest, None, None), "added": fresh})
        return
    result = "added" if fresh else "exists already"
    STDOUT.print(f"{name} {manifest.digest[:12]} {result}: {len(manifest.files)} files, {_size(manifest.size)}")
    STDERR.print(f"serve it with: gpufleet model rollout {manifest.digest[:12]} --name {name} --bucket {bucket}")


def ls(bucket: BucketOption, as_json: JsonOption = False) -> None:
    """List the models of the bucket, each with its number of revisions and its served revision."""
    place = open_place(bucket)
    if place.folder is not None and not place.folder.is_dir():
        raise AppError(f"{bucket}: is not a folder; check --bucket")
    try:
        names = place.listing.folders(place.key("models"))
    except OSError as error:
        raise AppError(f"{bucket}: {error}") from error
    rows = [row for name in names if (row := _model_row(ModelRegistry(bucket, name)))["revisions"]]
    if as_json:
        print_json(rows)
        return
    if not rows:
        note(f"{bucket}: no models")
    for row in rows:
        served = f"serves {row['served'][:12]} ({row['revision']})" if row["served"] else "serves nothing"
        STDOUT.print(f"{row['model']}  {row['revisions']} revisions  {served}", highlight=False, markup=False)


def show(name: NameOption, bucket: BucketOption, as_json: JsonOption = False) -> None:
    """List all revisions of a model, with size, approval and facts, and mark the served revision."""
    registry = ModelRegistry(bucket, name)
    served = registry.served()
    rows = [
        _row(manifest, served, registry.approval(digest))
        for digest in registry.digests()
        if (manifest := registry.manifest(digest)) is not None
    ]
    if not rows:
        raise AppError(f"{bucket}: does not contain model {name}; `gpufleet model ls --bucket {bucket}` lists models")
    if as_json:
        print_json(rows)
        return
    for row in rows:
        mark = "served" if row["served"] else "      "
        by = f"approved by {row['approved']['by']}" if row["approved"] else "not approved"
        facts = "  ".join(f"{key} {value}" for key, value in sorted(row["facts"].items()))
        STDOUT.print(
            f"{mark}  {row['digest'][:12]}  {row['revision']}  {_size(row['size'])}  {by}  {facts}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def approve(
    digest: Annotated[str, typer.Argument(help="Digest of the revision, or at least its first 12 characters.")],
    name: NameOption,
    bucket: BucketOption,
    by: Annotated[
        str | None, typer.Option("--by", help="Name of the person who approves. Default: your user name.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Reason of the approval, or a link to it.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Approve a revision for production. The approval applies only to files with exactly this content."""
    registry = ModelRegistry(bucket, name)
    given = Approval(digest=registry.resolve(digest), by=by or getpass.getuser(), at=datetime.now(UTC), note=note)
    try:
        approval.approve(registry.place.writer, given, model=registry.model)
    except (ManifestError, OSError) as error:
        raise AppError(f"{bucket}: {error}") from error
    if as_json:
        print_json({"model": name, "digest": given.digest, **_approval(given)})
    else:
        STDOUT.print(f"{name} {given.digest[:12]}: approved by {given.by}", highlight=False, markup=False)


def _check_expected(manifest: Manifest, found: Fetched) -> None:
    """Compare the files with the checksums that the source publishes. Raises ManifestError."""
    for file in manifest.files:
        wanted = found.sha256.get(file.path)
        if wanted is not None and wanted != file.sha256:
            raise ManifestError(
                f"{file.path}: expected sha256 {wanted[:12]}…, as its source states, got {file.sha256[:12]}…"
            )


def _facts(folder: Path, licence: str | None, source: str | None) -> dict[str, Any]:
    from serving.cache.store import FolderStore
    from serving.sizing import families
    from serving.sizing.model import SizingError, weigh
    from serving.sizing.source import read_config, read_tensors

    facts: dict[str, Any] = {"licence": licence, "source": source}
    store = FolderStore(folder)
    try:
        model = families.read(read_config(store, str))
        facts |= {
            "family": model.family,
            "dtype": model.dtype,
            "max_context": model.max_context,
            "parameters": weigh(read_tensors(store, str)).parameters,
        }
    except (SizingError, OSError) as error:
        STDERR.print(f"some facts of the model are unknown: {error}", markup=False)
    return {key: value for key, value in facts.items() if value is not None}


def _model_row(registry: ModelRegistry) -> dict[str, Any]:
    served, digests = registry.served(), registry.digests()
    manifest = None if served is None else registry.manifest(served)
    return {
        "model": registry.name,
        "revisions": sum(1 for digest in digests if registry.has(digest)),
        "served": served,
        "revision": manifest and manifest.revision,
        "size": manifest and manifest.size,
    }


def _row(manifest: Manifest, served: str | None, approved: Approval | None) -> dict[str, Any]:
    return {
        "model": manifest.name,
        "digest": manifest.digest,
        "revision": manifest.revision,
        "files": len(manifest.files),
        "size": manifest.size,
        "facts": dict(manifest.facts),
        "served": manifest.digest == served,
        "approved": None if approved is None else _approval(approved),
    }


def _approval(given: Approval) -> dict[str, str]:
    return {"by": given.by, "at": given.at.isoformat(timespec="seconds"), "note": given.note}


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _note(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False)
