"""`gpufleet cache`: models on local disks."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.stores import open_place
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from serving.cache import sync as syncing
from serving.cache.disk import Cache, CachedRevision, CacheError
from serving.cache.manifest import ManifestError
from serving.cache.sync import Progress, Sync

DEFAULT = Path("/mnt/nvme/models")
ToOption = Annotated[Path, typer.Option("--to", help="Folder of the cache.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Models on local disks: download, verify, list and evict them.", no_args_is_help=True)
    group.command("sync")(sync)
    group.command("verify")(verify)
    group.command("ls")(ls)
    group.command("evict")(evict)
    app.add_typer(group, name="cache")


def sync(
    url: Annotated[
        str, typer.Argument(help="URL of the model: s3://bucket/models/chat, gs://…, or a folder with this layout.")
    ],
    to: ToOption = DEFAULT,
    digest: Annotated[
        str | None, typer.Option("--digest", help="Full digest of the revision. Default: the served revision.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=128, help="Number of parallel connections, 1 to 128.")
    ] = 16,
    as_json: JsonOption = False,
) -> None:
    """Download a model into the cache and verify it chunk by chunk. If interrupted, the next run continues."""
    folder, _, name = url.rstrip("/").rpartition("/")
    place = open_place(folder or ".")
    model = place.key(name)
    progress = Progress()
    work = Sync(store=place.store, cache=Cache(to), model=model, workers=workers)
    try:
        wanted = digest or syncing.served_digest(place.store, model)
        with _Ticker(progress, quiet=as_json):
            path = work.bring(wanted, datetime.now(UTC), progress)
    except (CacheError, ManifestError, OSError, ValueError) as error:
        raise AppError(f"{url}: {error}") from error
    seconds = time.monotonic() - progress.started
    if as_json:
        print_json(
            {
                "path": str(path),
                "digest": wanted,
                "size": progress.total,
                "fetched": progress.fetched,
                "kept": progress.kept,
                "retries": progress.retries,
                "seconds": round(seconds, 3),
            }
        )
    else:
        STDOUT.print(str(path), highlight=False, soft_wrap=True)
        rate = progress.fetched / max(seconds, 1e-6) / 1e9
        STDERR.print(
            f"{progress.fetched / 1e9:.2f} GB fetched and verified at {rate:.2f} GB/s, {progress.kept / 1e9:.2f} GB "
            f"were cached already, {progress.retries} reads retried",
            highlight=False,
        )


class _Ticker:
    """Prints the progress of a sync every second, with each file in progress."""

    def __init__(self, progress: Progress, *, quiet: bool) -> None:
        self._progress, self._quiet = progress, quiet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1):
            if self._quiet or not self._progress.total:
                continue
            done = self._progress.fetched + self._progress.kept
            eta = self._progress.eta_s
            left = "" if eta is None else f", {eta:.0f} s left"
            share = 100 * done / self._progress.total
            files = "".join(f"; {path} {100 * part:.0f} %" for path, part in self._progress.under_way().items())
            STDERR.print(f"{share:3.0f} %  {self._progress.bytes_per_s / 1e6:.0f} MB/s{left}{files}", highlight=False)


def verify(
    to: ToOption = DEFAULT,
    name: Annotated[str | None, typer.Argument(help="Name of one model. Default: all models.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read cached models and compare every byte with their manifests. Exit code 3: a file differs or is missing."""
    cache = Cache(to)
    found = [
        {"model": entry.name, "digest": entry.digest, "wrong": syncing.verify(cache, entry.name, entry.digest)}
        for entry in _entries(cache)
        if name in (None, entry.name)
    ]
    if name is not None and not found:
        names = ", ".join(sorted({entry.name for entry in _entries(cache)})) or "none"
        raise AppError(f"{name!r} is not in the cache {to}; models there: {names}", ErrorCode.WRONG_USE)
    if as_json:
        print_json(found)
    else:
        for row in found:
            result = "; ".join(row["wrong"]) or "correct"
            STDOUT.print(f"{row['model']} {row['digest'][:12]}: {result}", highlight=False, markup=False)
    if any(row["wrong"] for row in found):
        raise typer.Exit(Exit.FOUND)


def ls(to: ToOption = DEFAULT, as_json: JsonOption = False) -> None:
    """List the cached revisions, least recently used first."""
    rows = [_row(entry) for entry in _entries(Cache(to))]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        state = "in use" if row["leased"] else "free"
        STDOUT.print(
            f"{row['model']}  {row['digest'][:12]}  {row['size'] / 1e9:.2f} GB  {row['used_at']}  {state}",
            highlight=False,
        )


def evict(
    digest: Annotated[str, typer.Argument(help="Digest of the revision, or its first characters.")],
    to: ToOption = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Remove a revision from the cache. The command refuses to remove a revision that this machine serves."""
    cache = Cache(to)
    found = [entry for entry in _entries(cache) if digest and entry.digest.startswith(digest)]
    if len(found) != 1:
        raise AppError(
            f"{digest}: the digests of {len(found)} revisions begin with it, expected 1; see `gpufleet cache ls`",
            ErrorCode.WRONG_USE,
        )
    if not cache.evict(found[0]):
        raise AppError(f"{found[0].name} {digest}: this machine serves the revision; drain it first")
    if as_json:
        print_json({"evicted": _row(found[0])})
    else:
        STDOUT.print(f"{found[0].name} {found[0].digest[:12]}: removed, {found[0].size / 1e9:.2f} GB freed")


def _entries(cache: Cache) -> list[CachedRevision]:
    if not cache.root.is_dir():
        raise AppError(f"{cache.root}: not a folder; give the cache's folder with --to", ErrorCode.WRONG_USE)
    return cache.entries()


def _row(entry: CachedRevision) -> dict[str, Any]:
    return {
        "model": entry.name,
        "digest": entry.digest,
        "path": str(entry.path),
        "size": entry.size,
        "used_at": entry.used_at.isoformat(timespec="seconds"),
        "leased": entry.leased,
    }
