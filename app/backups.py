"""Writes the ledger as lines of JSON into a file or a bucket, and restores it on another machine."""

import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from app import ledgers
from app.errors import AppError
from app.stores import StorageLocation, digest_of, fetch_file, open_place
from gpufleet.domain.parsed import is_map
from gpufleet.ledger import invariants, transfer
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import LedgerError
from gpufleet.settings.document import FleetDocument
from serving.cache.store import read_object

LATEST: Final = "latest.json"
_LARGEST_POINTER: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that was written."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A backup that was restored."""

    key: str
    at: str
    """Time of the backup, from its pointer."""
    rows: int
    breaches: int
    """Number of invariants that the restored ledger violates."""


def backup(document: FleetDocument, place: str, now: datetime) -> Backup:
    """Write the whole ledger into a bucket. The pointer to the newest backup is written last. Raises AppError."""
    target = _place(document, place)
    name = f"{now:%Y%m%dT%H%M%S%fZ}.jsonl.gz"
    with tempfile.TemporaryDirectory(prefix="gpufleet-backup-") as folder:
        path = Path(folder, name)
        digest = _write(document, path, now)
        key = target.key(f"{_folder(document)}/{name}")
        try:
            target.writer.put_file(key, path)
            pointer = {"version": 1, "key": key, "sha256": digest, "bytes": path.stat().st_size}
            pointer |= {"at": now.isoformat(timespec="seconds")}
            body = json.dumps(pointer, indent=2).encode()
            target.writer.put_bytes(target.key(f"{_folder(document)}/{LATEST}"), body)
        except OSError as error:
            raise AppError(f"{key}: the backup could not be written: {error}") from error
        return Backup(key=key, bytes=path.stat().st_size, sha256=digest)


def restore(document: FleetDocument, place: str) -> Restored:
    """Restore the newest backup in one transaction, then verify the ledger.

    Rows that exist already are kept. Raises AppError.
    """
    source = _place(document, place)
    pointer = _pointer(source, document)
    with tempfile.TemporaryDirectory(prefix="gpufleet-restore-") as folder:
        path = Path(folder, "ledger.jsonl.gz")
        digest = _fetched(source, pointer["key"], path)
        if digest != pointer["sha256"]:
            raise AppError(f"{pointer['key']}: is damaged: expected SHA-256 {pointer['sha256']}, got {digest}")
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                counts = _import(document, lines, path.name)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise AppError(f"{pointer['key']}: the backup cannot be read: {error}") from error
    return Restored(key=pointer["key"], at=pointer["at"], rows=sum(counts.values()), breaches=len(breaches(document)))


def breaches(document: FleetDocument) -> Sequence[invariants.Breach]:
    """The invariants that the fleet's ledger violates. Raises AppError."""
    with ledgers.ledger_errors(document), ledgers.present_ledger_of(document).connect() as connection:
        return list(invariants.verify(connection))


def export(document: FleetDocument, now: datetime) -> Iterator[str]:
    """The whole ledger, line by line. Raises AppError."""
    with ledgers.ledger_errors(document), ledgers.present_ledger_of(document).connect() as connection:
        yield from transfer.export(connection, now)


def import_file(document: FleetDocument, file: Path) -> Mapping[str, int]:
    """Import an export in one transaction. Returns the number of rows by table. Raises AppError."""
    try:
        with file.open(encoding="utf-8") as lines:
            return _import(document, lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise AppError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _write(document: FleetDocument, path: Path, now: datetime) -> str:
    try:
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as file:
            file.writelines(export(document, now))
    except OSError as error:
        raise AppError(f"{path}: cannot be written: {error.strerror or error}") from error
    return digest_of(path)


def _import(document: FleetDocument, lines: TextIO, name: str) -> Mapping[str, int]:
    try:
        with ledgers.ledger_errors(document), writing(ledgers.open_ledger_of(document)) as connection:
            return transfer.import_rows(connection, lines, name)
    except LedgerError as error:
        raise AppError(str(error)) from error


def _pointer(source: StorageLocation, document: FleetDocument) -> dict[str, Any]:
    key = source.key(f"{_folder(document)}/{LATEST}")
    reader = source.store.connect()
    try:
        found: Any = json.loads(read_object(reader, key, _LARGEST_POINTER))
    except FileNotFoundError as error:
        raise AppError(f"{key}: there is no backup yet; create one with `gpufleet ledger backup`") from error
    except OSError as error:
        raise AppError(f"{key}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise AppError(f"{key}: is not a valid pointer to a backup: {error}") from error
    finally:
        reader.close()
    if not is_map(found):
        raise AppError(f"{key}: is not a valid pointer to a backup: it is not a JSON object")
    if found.get("version") != 1:
        raise AppError(f"{key}: is not a valid pointer to a backup: version is {found.get('version')!r}, must be 1")
    if lacking := [name for name in ("key", "sha256", "at") if not isinstance(found.get(name), str)]:
        raise AppError(f"{key}: is not a valid pointer to a backup: expected text for {', '.join(lacking)}")
    return dict(found)


def _fetched(source: StorageLocation, key: str, path: Path) -> str:
    try:
        return fetch_file(source, key, path)
    except OSError as error:
        raise AppError(f"{key}: cannot be read: {error}") from error


def has_backup(document: FleetDocument) -> bool:
    """Whether a backup exists. Raises OSError when that cannot be determined."""
    source = _place(document, "")
    reader = source.store.connect()
    try:
        reader.size_and_version(source.key(f"{_folder(document)}/{LATEST}"))
    except FileNotFoundError:
        return False
    finally:
        reader.close()
    return True


def _place(document: FleetDocument, place: str) -> StorageLocation:
    return open_place(place or f"{document.bucket.rstrip('/')}/backups/ledger")


def _folder(document: FleetDocument) -> str:
    return ledgers.ledger_name(document)
