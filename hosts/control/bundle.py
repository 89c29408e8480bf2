"""The control host's software as one archive: the project's packages and their dependencies.

The host unpacks it and runs it without installation. The same sources produce the same bytes, so the digest
identifies the bundle.
"""

import gzip
import hashlib
import io
import json
import tarfile
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.domain.bucket import BUNDLES
from hosts.control import root_files

ARCHIVE_NAME: Final = "gpufleet-control.tar.gz"
KEPT: Final = "bundle.tar.gz"
"""Name of the archive in the folder of the unpacked release; the files there can be compared with it."""
MANIFEST: Final = "bundle.json"
_PIECE: Final = 1 << 20
LEFT_OUT: Final = frozenset({"__pycache__"})
COMMAND: Final = """\
#!/bin/sh
# The command of this release: its own code, whatever else the machine has.
here=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
export PYTHONPATH="$here/lib" PYTHONDONTWRITEBYTECODE=1
exec python3 -P -m cli.main "$@"
"""


class BundleError(ValueError):
    """The bundle cannot be built, or is not the expected one. The message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle file that was written."""

    path: Path
    sha256: str
    bytes: int
    files: int


def key(sha256: str) -> str:
    """Return the key of the bundle with this digest in the bucket."""
    return f"{BUNDLES}{sha256}/{ARCHIVE_NAME}"


def build(root: Path, dependencies: Path | None, out: Path) -> Bundle:
    """Pack the project's packages from the clone at `root` and the installed packages in `dependencies` into `out`.

    `dependencies`: None if the machine's Python has all of them. Raises BundleError, OSError.
    """
    files = list(_files(root, dependencies))
    manifest = {"version": 1, "files": len(files), "dependencies": dependencies is not None}
    part = out.with_name(f".{out.name}.part")
    with (
        part.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n", 0o644)
        _add(archive, "bin/gpufleet", COMMAND.encode(), 0o755)
        for name, path in files:
            _add(archive, f"lib/{name}", path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
    with part.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    part.replace(out)
    return Bundle(path=out, sha256=sha256, bytes=out.stat().st_size, files=len(files))


def unpack(sha256: str, folder: Path) -> None:
    """Unpack the bundle in `folder` into the same folder.

    Raises BundleError if its digest differs, OSError, TarError.
    """
    with _verified(sha256, folder) as archive:
        archive.extractall(folder, filter="data")


def is_unpacked(sha256: str, folder: Path) -> bool:
    """Return whether a folder contains that bundle, all of its files unchanged, and no other file.

    Raises BundleError if the bundle there has another digest, OSError, TarError.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    left = {path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    with _verified(sha256, folder) as archive:
        left.discard(folder / KEPT)
        for entry in archive:
            path = folder / entry.name
            if entry.isdir():
                continue
            if path not in left or not entry.isfile() or not _is_same(archive, entry, path):
                return False
            left.discard(path)
    return not left


def _is_same(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> bool:
    packed = archive.extractfile(entry)
    with root_files.open_regular(path) as file:
        return packed is not None and packed.read() == file.read()


@contextmanager
def _verified(sha256: str, folder: Path) -> Generator[tarfile.TarFile]:
    with root_files.open_regular(folder / KEPT) as file:
        found = hashlib.sha256()
        while piece := file.read(_PIECE):
            found.update(piece)
        if found.hexdigest() != sha256:
            raise BundleError(f"the file has SHA-256 {found.hexdigest()}, expected {sha256}: it is not used")
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            yield archive


def package_names(root: Path) -> tuple[str, ...]:
    """Return the names of the project's packages that a control host needs. Raises BundleError."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        return tuple(packages)
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise BundleError(
            f"{root / 'pyproject.toml'}: does not list the packages ({error}): run it in a clone"
        ) from error


def _files(root: Path, dependencies: Path | None) -> Iterator[tuple[str, Path]]:
    found: dict[str, Path] = {}
    if dependencies is not None:
        found |= dict(_files_below(dependencies, dependencies))
    for package in package_names(root):
        mine = dict(_files_below(root / package, root))
        if not mine:
            raise BundleError(f"{root / package}: contains no files; a bundle without them cannot run")
        found |= mine
    yield from sorted(found.items())


def _files_below(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file() and not LEFT_OUT & set(path.parts):
            yield path.relative_to(root).as_posix(), path


def _add(archive: tarfile.TarFile, name: str, body: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(body), mode
    archive.addfile(entry, io.BytesIO(body))
