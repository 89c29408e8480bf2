"""Approvals of revisions for production: `approvals/<name>/<digest>.json`. An approval is valid for one digest only.

Approvals have a prefix of their own, so permission to add models does not include permission to approve them. Version
0.1 wrote `models/<name>/<digest>/approved.json`; this package reads that for one more release.
"""

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from serving.cache.manifest import OBJECT, ManifestError, check_digest
from serving.cache.store import ObjectStore, Writer, read_object

VERSION: Final = 1
_LARGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The approval of one revision for production: who gave it, and when."""

    digest: str
    by: str
    at: datetime
    note: str = ""


class NotApprovedError(ManifestError):
    """The revision has no approval."""


def needs_approval(environment: str) -> bool:
    """Whether the environment serves only approved revisions: production does, as in the policy pack."""
    return environment == "prod"


def approve(writer: Writer, approval: Approval, *, model: str) -> None:
    """Write the approval of a revision of `model` (`models/chat`). Raises OSError; ManifestError if it is unknown."""
    base = f"{model}/{approval.digest}"
    if not writer.exists(f"{base}/{OBJECT}"):
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
    """Return the approval of a revision, or None. Raises OSError; ManifestError for an approval of another digest.

    A caller without permission to list the bucket also gets PermissionError when the approval is absent.
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
    """Raise NotApprovedError when the environment needs an approval that this revision lacks.

    Also raises ManifestError for an approval of another digest, and OSError.
    """
    if not needs_approval(environment):
        return
    try:
        found = read_approval(store, model, digest)
    except PermissionError as error:
        # an instance may not list the bucket, so S3 answers alike for absent and refused objects
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
        raise ManifestError(f"{key}: is not a valid approval: approve the revision again") from error
    if (version := raw.get("version")) != VERSION:
        raise ManifestError(f"{key}: version is {version!r}, must be {VERSION}: approve the revision again")
    if found.digest != digest:
        raise ManifestError(f"{key}: approves {found.digest[:12]}…, not {digest[:12]}…: approve the revision again")
    return found
