"""`gpufleet model`: models in a bucket, by content; which revision is served."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.fleets import FleetOption, load_one
from cli.output import STDERR, STDOUT, Exit, UserError, print_json
from cli.stores import Place, open_place
from fleet import durations
from serving.cache import publish
from serving.cache.manifest import Manifest, ManifestError, describe
from serving.cache.store import read_object
from serving.cache.sync import fetch_manifest, served_digest

BucketOption = Annotated[
    str, typer.Option("--bucket", help="URL of the bucket: s3://…, gs://…, or a folder.", envvar="GPUFLEET_BUCKET")
]
NameOption = Annotated[str, typer.Option("--name", help="The model's name in the bucket: models/<name>.")]
LimitOption = Annotated[str, typer.Option("--limit", help="Longest time for one instance to change.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
_HISTORY = "history.json"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Models in a bucket: add, show, roll out, roll back.", no_args_is_help=True)
    group.command("add")(add)
    group.command("show")(show)
    group.command("rollout")(rollout)
    group.command("rollback")(rollback)
    app.add_typer(group, name="model")


def add(
    folder: Annotated[Path, typer.Argument(help="The model's folder, as Hugging Face lays it out (safetensors).")],
    name: NameOption,
    bucket: BucketOption,
    revision: Annotated[str, typer.Option("--revision", help="What people call it.")] = "unnamed",
    licence: Annotated[str | None, typer.Option("--licence", help="Noted in the manifest.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Where it came from; noted in the manifest.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put a model into the bucket, by content: the same bytes are stored once. Nothing is served by this."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder", Exit.WRONG_USE)
    place = open_place(bucket)
    try:
        manifest = describe(folder, name=name, revision=revision, facts=_facts(folder, licence, source))
        fresh = publish.add(place.writer, folder, manifest, prefix=place.key("models"), told=_say)
    except (ManifestError, OSError) as error:
        raise UserError(f"{folder}: {error}") from error
    if as_json:
        print_json({**_row(manifest, None), "added": fresh})
        return
    words = "added" if fresh else "was there already"
    STDOUT.print(f"{name} {manifest.digest[:12]} {words}: {len(manifest.files)} files, {_size(manifest.size)}")
    STDERR.print(f"serve it with: gpufleet model rollout {manifest.digest[:12]} --name {name} --bucket {bucket}")


def show(name: NameOption, bucket: BucketOption, as_json: JsonOption = False) -> None:
    """The revision that is served, and those before it."""
    place = open_place(bucket)
    model = place.key(f"models/{name}")
    try:
        served = served_digest(place.store, model)
        revisions = [served, *(digest for digest in reversed(_history(place, model)) if digest != served)]
        rows = [_row(fetch_manifest(place.store, model, digest), served) for digest in dict.fromkeys(revisions)]
    except (ManifestError, OSError) as error:
        raise UserError(f"{bucket}: {model}: {error}") from error
    if as_json:
        print_json(rows)
        return
    for row in rows:
        mark = "served" if row["served"] else "      "
        STDOUT.print(f"{mark}  {row['digest'][:12]}  {row['revision']}  {_size(row['size'])}", highlight=False)


def rollout(
    digest: Annotated[str, typer.Argument(help="The revision's digest, or how it begins (12 characters or more).")],
    name: NameOption,
    bucket: BucketOption,
    fleet: FleetOption = None,
    limit: LimitOption = "30m",
    as_json: JsonOption = False,
) -> None:
    """Serve a revision: instances fetch it beside the old one; with --fleet they change to it one after the other."""
    place = open_place(bucket)
    model = place.key(f"models/{name}")
    chosen = _resolve(place, model, digest)
    before = _served(place, model)
    _serve(place, name, chosen, before)
    _told(name, chosen, before, as_json)
    _walk(name, chosen, fleet, limit)


def rollback(
    name: NameOption,
    bucket: BucketOption,
    fleet: FleetOption = None,
    limit: LimitOption = "30m",
    as_json: JsonOption = False,
) -> None:
    """Serve the revision before the one that is served."""
    place = open_place(bucket)
    model = place.key(f"models/{name}")
    before = _served(place, model)
    earlier = [digest for digest in _history(place, model) if digest != before]
    if not earlier:
        raise UserError(f"{model}: no revision was served before this one")
    _serve(place, name, earlier[-1], before)
    _told(name, earlier[-1], before, as_json)
    _walk(name, earlier[-1], fleet, limit)


def _walk(name: str, digest: str, fleets: list[str] | None, limit: str) -> None:
    """Let every pool of the model change, one instance at a time. Raises UserError where it stops."""
    # only here: what asks clouds takes a second to import
    from cli.wiring import agents_of, inventory_of
    from fleet.activity import CloudError
    from serving.revisions import PoolRollout, RolloutError, Walk

    try:
        longest = durations.parse(limit)
    except ValueError as error:
        raise UserError(f"--limit: {error}", Exit.WRONG_USE) from error
    for document in [load_one(url) for url in fleets or []]:
        inventory, agents = inventory_of(document), agents_of(document)
        for pool in [pool for pool in document.pools if pool.model == f"models/{name}"]:
            walk = Walk(
                rollout=PoolRollout(pool=pool.name, floor=pool.min, limit=longest),
                instances=lambda pool=pool, inventory=inventory: [
                    one for one in inventory.instances() if one.pool == pool.name and one.alive
                ],
                agents=agents,
                say=_say,
                clock=time.monotonic,
                sleep=time.sleep,
            )
            try:
                _say(f"{pool.name}: {walk.run(digest)} instances changed")
            except (RolloutError, CloudError) as error:
                raise UserError(str(error)) from error


def _serve(place: Place, name: str, digest: str, before: str | None) -> None:
    model = place.key(f"models/{name}")
    history = [old for old in _history(place, model) if old != digest]
    if before is not None and before not in history and before != digest:
        history.append(before)
    try:
        publish.rollout(place.writer, name=name, digest=digest, prefix=place.key("models"))
        place.writer.put_bytes(f"{model}/{_HISTORY}", json.dumps({"version": 1, "digests": history}).encode() + b"\n")
    except (ManifestError, OSError) as error:
        raise UserError(f"{model}: {error}") from error


def _told(name: str, digest: str, before: str | None, as_json: bool) -> None:
    if as_json:
        print_json({"model": name, "served": digest, "before": before})
    else:
        STDOUT.print(f"{name}: {digest[:12]} is served from now on (before: {before[:12] if before else 'nothing'})")


def _history(place: Place, model: str) -> list[str]:
    """Digests that were served before, oldest first."""
    reader = place.store.connect()
    try:
        found: dict[str, Any] = json.loads(read_object(reader, f"{model}/{_HISTORY}", 1024 * 1024))
        return [str(digest) for digest in found["digests"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{model}/{_HISTORY}: {error}") from error
    finally:
        reader.close()


def _served(place: Place, model: str) -> str | None:
    try:
        return served_digest(place.store, model)
    except FileNotFoundError:
        return None
    except (ManifestError, OSError) as error:
        raise UserError(f"{model}: {error}") from error


def _resolve(place: Place, model: str, text: str) -> str:
    """The whole digest. A short one is looked for among those that were served; a new one is given whole."""
    if len(text) == 64:
        return text
    known = [digest for digest in (*_history(place, model), _served(place, model)) if digest]
    found = sorted({digest for digest in known if len(text) >= 12 and digest.startswith(text)})
    if len(found) == 1:
        return found[0]
    raise UserError(
        f"{text}: give the whole digest (64 characters; `gpufleet model add --json` prints it)", Exit.WRONG_USE
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
        STDERR.print(f"some facts are not known: {error}", markup=False)
    return {key: value for key, value in facts.items() if value is not None}


def _row(manifest: Manifest, served: str | None) -> dict[str, Any]:
    return {
        "model": manifest.name,
        "digest": manifest.digest,
        "revision": manifest.revision,
        "files": len(manifest.files),
        "size": manifest.size,
        "facts": dict(manifest.facts),
        "served": manifest.digest == served,
    }


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _say(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False)
