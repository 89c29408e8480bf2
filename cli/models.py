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
from cli.output import STDERR, STDOUT, print_json
from serving.cache import approval, publish
from serving.cache.approval import Approval
from serving.cache.manifest import Manifest, ManifestError, describe

SourceArgument = Annotated[
    str,
    typer.Argument(
        help="A folder as Hugging Face lays it out (safetensors), s3://…, gs://…, hf://OWNER/NAME[@REVISION] "
        "(extra `hub`), or MLflow's models:/NAME/VERSION, runs:/… (extra `mlflow`)."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Models in a bucket: add, look, approve, roll out, roll back.", no_args_is_help=True)
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
        str | None, typer.Option("--revision", help="What people call it. Default: the source's own word for it.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--licence", help="Noted in the manifest. Default: what a hub says.")
    ] = None,
    noted: Annotated[
        str | None, typer.Option("--source", help="Where it came from; noted in the manifest. Default: the URL.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", help="Folder with room for a model that is not on this machine.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put a model into the bucket, by content: the same bytes are stored once. Nothing is served by this."""
    place = open_place(bucket)
    with open_source(source, scratch, _say) as found:
        try:
            facts = _facts(found.folder, licence or found.licence, noted or found.source)
            manifest = describe(found.folder, name=name, revision=revision or found.revision, facts=facts)
            _check_expected(manifest, found)
            fresh = publish.add(place.writer, found.folder, manifest, prefix=place.key("models"), announce=_say)
        except (ManifestError, OSError) as error:
            raise AppError(f"{source}: {error}") from error
    if as_json:
        print_json({**_row(manifest, None, None), "added": fresh})
        return
    words = "added" if fresh else "was there already"
    STDOUT.print(f"{name} {manifest.digest[:12]} {words}: {len(manifest.files)} files, {_size(manifest.size)}")
    STDERR.print(f"serve it with: gpufleet model rollout {manifest.digest[:12]} --name {name} --bucket {bucket}")


def ls(bucket: BucketOption, as_json: JsonOption = False) -> None:
    """Every model of the bucket: how many revisions, and which one is served."""
    place = open_place(bucket)
    try:
        names = place.listing.folders(place.key("models"))
    except OSError as error:
        raise AppError(f"{bucket}: {error}") from error
    rows = [row for name in names if (row := _model_row(ModelRegistry(bucket, name)))["revisions"]]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        served = f"serves {row['served'][:12]} ({row['revision']})" if row["served"] else "serves nothing"
        STDOUT.print(f"{row['model']}  {row['revisions']} revisions  {served}", highlight=False, markup=False)


def show(name: NameOption, bucket: BucketOption, as_json: JsonOption = False) -> None:
    """Every revision: the one that is served, those before it, and those never served; what each is."""
    shelf = ModelRegistry(bucket, name)
    served = shelf.served()
    rows = [
        _row(manifest, served, shelf.approval(digest))
        for digest in shelf.digests()
        if (manifest := shelf.manifest(digest)) is not None
    ]
    if not rows:
        raise AppError(f"{bucket}: there is no model {name}; `gpufleet model ls --bucket {bucket}` lists them")
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
    digest: Annotated[str, typer.Argument(help="The revision's digest, or how it begins (12 characters or more).")],
    name: NameOption,
    bucket: BucketOption,
    by: Annotated[str | None, typer.Option("--by", help="Who approves. Default: the user of this machine.")] = None,
    note: Annotated[str, typer.Option("--note", help="Why, or where that is written.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Allow a revision to be served in production. It holds for these bytes alone."""
    shelf = ModelRegistry(bucket, name)
    given = Approval(digest=shelf.resolve(digest), by=by or getpass.getuser(), at=datetime.now(UTC), note=note)
    try:
        approval.approve(shelf.place.writer, given, model=shelf.model)
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
            raise ManifestError(f"{file.path}: its sha256 is {file.sha256[:12]}…, the source says {wanted[:12]}…")


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
        STDERR.print(f"some facts are not known: {error}", markup=False)
    return {key: value for key, value in facts.items() if value is not None}


def _model_row(shelf: ModelRegistry) -> dict[str, Any]:
    served, digests = shelf.served(), shelf.digests()
    manifest = None if served is None else shelf.manifest(served)
    return {
        "model": shelf.name,
        "revisions": sum(1 for digest in digests if shelf.has(digest)),
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


def _say(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False)
