"""Who allowed a revision to be served: `approvals/<name>/<digest>.json`, which holds for those bytes alone.

Approvals have a prefix of their own, so that who may add models need not be who may approve them. Version 0.1 wrote
`models/<name>/<digest>/approved.json`; that is read for one release more.
"""

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from serving.cache.manifest import ManifestError, check_digest
from serving.cache.store import ObjectStore, Writer, read_object

VERSION: Final = 1
_LARGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One revision may be served in production."""

    digest: str
    by: str
    at: datetime
    note: str = ""


class NotApprovedError(ManifestError):
    """Nobody allowed this revision to be served."""


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
    writer.put_bytes(_key(model, approval.digest), json.dumps(value, ensure_ascii=False).encode() + b"\n")


def read_approval(store: ObjectStore, model: str, digest: str) -> Approval | None:
    """The note of a revision; None without one. Raises ManifestError for one about other bytes, OSError.

    PermissionError where it is absent, too, for who may not list the bucket.
    """
    check_digest(digest)
    refused: list[PermissionError] = []
    with contextlib.closing(store.connect()) as reader:
        for key in (_key(model, digest), f"{model}/{digest}/approved.json"):
            try:
                return _parsed(read_object(reader, key, _LARGEST), key, digest)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                refused.append(error)
    for error in refused:
        raise error
    return None


def check_approved(store: ObjectStore, model: str, digest: str, environment: str) -> None:
    """Raises NotApprovedError where the environment needs an approval that this revision does not have, ManifestError
    for one about other bytes, OSError."""
    if not needs_approval(environment):
        return
    try:
        found = read_approval(store, model, digest)
    except PermissionError as error:
        # an instance may not list the bucket, so S3 does not tell it what is absent from what is refused
        raise NotApprovedError(
            f"{digest[:12]}: is not approved for {environment}, or {_key(model, digest)} may not be read ({error})"
        ) from error
    if found is None:
        raise NotApprovedError(f"{digest[:12]}: is not approved for {environment}: run `gpufleet model approve`")


def _key(model: str, digest: str) -> str:
    folder, _, name = model.rpartition("/")
    return f"{folder.removesuffix('models')}approvals/{name}/{digest}.json"


def _parsed(body: bytes, key: str, digest: str) -> Approval:
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
