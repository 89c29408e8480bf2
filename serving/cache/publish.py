"""Uploads a model to a store, and sets the revision that is served."""

import json
from collections.abc import Callable
from pathlib import Path

from serving.cache.manifest import OBJECT, Manifest, ManifestError
from serving.cache.store import Writer


def add(
    writer: Writer,
    folder: Path,
    manifest: Manifest,
    *,
    prefix: str = "models",
    announce: Callable[[str], None] = lambda _line: None,
) -> bool:
    """Upload a model's folder to the store under its digest. `manifest` is `describe(folder, …)`.

    The manifest is uploaded last, so readers never see a partial upload. This does not change what is served.
    Returns False when the store has the revision already. Raises OSError.
    """
    base = f"{prefix}/{manifest.name}/{manifest.digest}"
    if writer.exists(f"{base}/{OBJECT}"):
        return False
    for file in manifest.files:
        writer.put_file(f"{base}/files/{file.path}", folder / file.path)
        announce(f"{file.path} ({file.size} bytes)")
    writer.put_bytes(f"{base}/{OBJECT}", manifest.render())
    return True


def rollout(writer: Writer, *, name: str, digest: str, prefix: str = "models", changes_running: bool = False) -> None:
    """Write the digest to `served.json`. Booting instances serve it; with `changes_running`, the control host also
    changes running ones. Raises ManifestError when the store lacks the revision."""
    if not writer.exists(f"{prefix}/{name}/{digest}/{OBJECT}"):
        raise ManifestError(f"{prefix}/{name}/{digest}: no such revision; add it first with `gpufleet model add`")
    served = {"version": 1, "digest": digest} | ({"changes_running": True} if changes_running else {})
    body = json.dumps(served).encode() + b"\n"
    writer.put_bytes(f"{prefix}/{name}/served.json", body)
