"""The manifest: the exact files of a model revision. Its own sha256 is the revision's digest.

In the bucket: `<model>/<digest>/manifest.json`, its files under `<model>/<digest>/files/`, and
`<model>/served.json` with the digest that is served.
"""

import hashlib
import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, cast

from serving import weights

VERSION: Final = 1
CHUNK: Final = 32 * 1024 * 1024
"""Bytes covered by one chunk digest, and fetched by one read: 32 MiB."""
LARGEST_MANIFEST: Final = 64 * 1024 * 1024
_READ: Final = 1024 * 1024
_FIRST_READ: Final = 16 * 1024
"""Bytes read first from a weight file: most headers fit."""

SUFFIXES: Final = frozenset({".safetensors", ".json", ".txt", ".model", ".tiktoken", ".jinja", ".md", ".jsonl"})
"""Allowed file types. All types that can run code when loaded (pickles, Python) are rejected."""
_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
ADAPTER_CONFIG: Final = "adapter_config.json"
"""The configuration of a LoRA adapter, in the format of the library PEFT."""
OBJECT: Final = "manifest.json"
"""The manifest's name below its revision in the bucket."""
_RESERVED: Final = frozenset({OBJECT})


class ManifestError(ValueError):
    """A manifest, or the folder of a new one, cannot be used; the message names the file or field and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a model."""

    path: str
    size: int
    sha256: str
    """Digest of the whole file, as model hubs publish it. A sync checks `chunks`."""
    chunks: tuple[str, ...]
    """sha256 of each 32 MiB chunk, in order."""

    def chunk_size(self, index: int) -> int:
        """Return the size of a chunk: 32 MiB; the last one can be smaller."""
        return min(CHUNK, self.size - index * CHUNK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A revision of a model."""

    name: str
    revision: str
    """Name of the revision for people."""
    files: tuple[File, ...]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Licence, source, parameters, dtype, context: shown, never checked."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def folders(self) -> set[str]:
        """Return the relative paths of all folders with files; "" is the model's own folder."""
        return {posixpath.dirname(file.path) for file in self.files}

    def render(self) -> bytes:
        """Return the bytes of manifest.json. Equal manifests have equal bytes."""
        value = {
            "version": VERSION,
            "name": self.name,
            "revision": self.revision,
            "files": [
                {"path": f.path, "size": f.size, "sha256": f.sha256, "chunks": list(f.chunks)} for f in self.files
            ],
            "facts": dict(self.facts),
        }
        return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"

    @property
    def digest(self) -> str:
        """The revision's digest: sha256 of manifest.json. Each access renders the manifest, so store the result."""
        return hashlib.sha256(self.render()).hexdigest()


def parse(body: bytes, digest: str | None = None) -> Manifest:
    """Read a manifest; with `digest`, check its sha256, too. Raises ManifestError."""
    if digest is not None and hashlib.sha256(body).hexdigest() != digest:
        raise ManifestError(f"the manifest's bytes do not match its name {digest[:12]}…: it was changed")
    try:
        raw: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest is not valid JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("version") != VERSION:  # pyright: ignore[reportUnknownMemberType]
        raise ManifestError(
            f"is not a manifest of version {VERSION}: publish the revision again with `gpufleet model add`"
        )
    fields = cast("dict[str, Any]", raw)
    try:
        files = tuple(_file(entry) for entry in fields["files"])
        manifest = Manifest(
            name=str(fields["name"]), revision=str(fields["revision"]), files=files, facts=fields.get("facts", {})
        )
    except (KeyError, TypeError) as error:
        raise ManifestError(f"the manifest lacks a field, or one has the wrong type: {error}") from error
    _check_complete(manifest)
    return manifest


def _file(entry: Mapping[str, Any]) -> File:
    file = File(
        path=check_path(entry["path"]),
        size=int(entry["size"]),
        sha256=check_digest(entry["sha256"]),
        chunks=tuple(check_digest(digest) for digest in entry["chunks"]),
    )
    if file.size <= 0:
        raise ManifestError(f"{file.path}: expected a size above 0, got {file.size} bytes")
    if len(file.chunks) != -(-file.size // CHUNK):
        raise ManifestError(
            f"{file.path}: expected {-(-file.size // CHUNK)} chunks for {file.size} bytes, got {len(file.chunks)}"
        )
    return file


def _check_complete(manifest: Manifest) -> None:
    paths = [file.path.lower() for file in manifest.files]
    if twice := sorted(path for path, count in Counter(paths).items() if count > 1):
        raise ManifestError(f"the manifest lists files twice: {', '.join(twice)}")
    if not any(path.endswith(".safetensors") for path in paths):
        raise ManifestError("no *.safetensors file: only weights in safetensors are served")
    if not {"config.json", ADAPTER_CONFIG} & set(paths):
        raise ManifestError(f"no config.json, and no {ADAPTER_CONFIG} of a LoRA adapter")


def check_path(path: Any) -> str:
    """Check a path inside a model's folder. Raises ManifestError for `..`, hidden files, and types with code."""
    if not isinstance(path, str) or not _PATH.fullmatch(path) or len(path) > 512:
        raise ManifestError(f"{path!r}: is not a plain relative path")
    suffix = posixpath.splitext(path)[1]
    if suffix.lower() not in SUFFIXES:
        raise ManifestError(f"{path}: files of type {suffix or '(none)'} are not served (safetensors only)")
    if path.lower() in _RESERVED:
        raise ManifestError(f"{path}: this name is reserved for the cache")
    return path


def check_digest(value: Any) -> str:
    """Check a sha256 in hexadecimal. Raises ManifestError."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ManifestError(f"{value!r}: is not a hexadecimal sha256")
    return value


def check_safetensors(handle: int, size: int, shown: str) -> tuple[weights.Tensor, ...]:
    """Return the tensors of an open file of this size. Raises ManifestError that names the file as `shown`."""
    start = os.pread(handle, _FIRST_READ, 0)
    try:
        length = weights.header_length(start[: weights.PREFIX], size)
        whole = weights.PREFIX + length <= len(start)
        header = start[weights.PREFIX :][:length] if whole else os.pread(handle, length, weights.PREFIX)
        return weights.parse_header(header, size)
    except weights.HeaderError as error:
        raise ManifestError(f"{shown}: {error}") from error


def describe(folder: Path, *, name: str, revision: str, facts: Mapping[str, Any] | None = None) -> Manifest:
    """Create the manifest of a model's folder. Reads every byte once.

    Hidden files and pictures are left out. Other files of types that are not allowed are an error, because they can
    hold weights or code. Raises ManifestError, OSError.
    """
    files: list[File] = []
    for path in sorted(folder.rglob("*")):
        shown = path.relative_to(folder).as_posix()
        if path.is_dir() or _is_hidden(path.relative_to(folder)):
            continue
        if path.is_symlink() or not path.is_file():
            raise ManifestError(
                f"{shown}: is not a regular file (if it is a link, copy the model with links followed)"
            )
        if is_excluded(path.relative_to(folder)):
            continue
        files.append(_describe_file(path, check_path(shown)))
    manifest = Manifest(name=name, revision=revision, files=tuple(files), facts=dict(facts or {}))
    _check_complete(manifest)
    return manifest


_LEFT_OUT: Final = frozenset({".png", ".jpg", ".jpeg", ".gif", ".svg", ".gitattributes", ".pdf"})


def is_excluded(path: PurePath) -> bool:
    """Whether a file inside a model's folder is silently left out: a hidden file or a picture."""
    return _is_hidden(path) or path.suffix.lower() in _LEFT_OUT


def _is_hidden(path: PurePath) -> bool:
    return any(part.startswith(".") and part != ".." for part in path.parts)


def _describe_file(path: Path, shown: str) -> File:
    size = path.stat().st_size
    if size == 0:
        raise ManifestError(f"{shown}: is empty")
    whole, chunks = hashlib.sha256(), list[str]()
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            check_safetensors(file.fileno(), size, shown)
        for start in range(0, size, CHUNK):
            part = hashlib.sha256()
            rest = min(CHUNK, size - start)
            while rest:
                piece = file.read(min(_READ, rest))
                if not piece:
                    raise ManifestError(f"{shown}: became shorter while it was read")
                whole.update(piece)
                part.update(piece)
                rest -= len(piece)
            chunks.append(part.hexdigest())
    return File(path=shown, size=size, sha256=whole.hexdigest(), chunks=tuple(chunks))
