"""Who allowed a revision to be served. The note lies beside the revision, so it holds for those bytes alone.

`models/<name>/<digest>/approved.json`. Rights to write it are rights of the bucket; this room only reads the note.
"""

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from serving.cache.manifest import ManifestError
from serving.cache.store import Store, Writer, read_object

VERSION: Final = 1
_LARGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One revision may be served in production."""

    digest: str
    by: str
    at: datetime
    note: str = ""


def needs_approval(environment: str) -> bool:
    """Whether revisions must be approved before they are served there: in production, as the policy pack has it."""
    return environment == "prod"


def approve(writer: Writer, approval: Approval, *, model: str) -> None:
    """Write the note of a revision of `model` (`models/chat`). Raises ManifestError where there is none, OSError."""
    base = f"{model}/{approval.digest}"
    if not writer.exists(f"{base}/manifest.json"):
        raise ManifestError(f"{base}: no such revision; add it first with `gpufleet model add`")
    value = {
        "version": VERSION,
        "digest": approval.digest,
        "by": approval.by,
        "at": approval.at.astimezone(UTC).isoformat(timespec="seconds"),
        "note": approval.note,
    }
    writer.put_bytes(f"{base}/approved.json", json.dumps(value, ensure_ascii=False).encode() + b"\n")


def read_approval(store: Store, model: str, digest: str) -> Approval | None:
    """The note of a revision; None without one. Raises ManifestError for one about other bytes, OSError."""
    key = f"{model}/{digest}/approved.json"
    with contextlib.closing(store.connect()) as reader:
        try:
            body = read_object(reader, key, _LARGEST)
        except FileNotFoundError:
            return None
    try:
        raw: dict[str, Any] = json.loads(body)
        found = Approval(
            digest=str(raw["digest"]),
            by=str(raw["by"]),
            at=datetime.fromisoformat(raw["at"]),
            note=str(raw.get("note", "")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{key}: is no approval ({error!r}): approve the revision again") from error
    if found.digest != digest or raw.get("version") != VERSION:
        raise ManifestError(f"{key}: is about {found.digest[:12]}…, not about {digest[:12]}…: approve it again")
    return found
