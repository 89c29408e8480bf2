"""Put a model into a store, and say which revision is served."""

import json
from collections.abc import Callable
from pathlib import Path

from serving.cache.manifest import Manifest, ManifestError
from serving.cache.store import Writer


def add(
    writer: Writer,
    folder: Path,
    manifest: Manifest,
    *,
    prefix: str = "models",
    told: Callable[[str], None] = lambda _line: None,
) -> bool:
    """Put a model's folder (`manifest` = `describe(folder, …)`) into the store under its digest.

    The manifest goes last, so a revision without one does not exist. Nothing is served by this. False: it was there
    already. Raises OSError.
    """
    base = f"{prefix}/{manifest.name}/{manifest.digest}"
    if writer.exists(f"{base}/manifest.json"):
        return False
    for file in manifest.files:
        writer.put_file(f"{base}/files/{file.path}", folder / file.path)
        told(f"{file.path} ({file.size} bytes)")
    writer.put_bytes(f"{base}/manifest.json", manifest.render())
    return True


def rollout(writer: Writer, *, name: str, digest: str, prefix: str = "models", changes_running: bool = False) -> None:
    """Let `served.json` name a revision: instances that boot serve it, and with `changes_running` the control host
    changes those that run. Raises ManifestError when it is not in the store."""
    if not writer.exists(f"{prefix}/{name}/{digest}/manifest.json"):
        raise ManifestError(f"{prefix}/{name}/{digest}: no such revision; add it first with `gpufleet model add`")
    served = {"version": 1, "digest": digest} | ({"changes_running": True} if changes_running else {})
    body = json.dumps(served).encode() + b"\n"
    writer.put_bytes(f"{prefix}/{name}/served.json", body)
