"""A bucket's models for `gpufleet model`: revisions, approvals, the served revision and the ones before it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import AppError, ErrorCode
from app.stores import StorageLocation, open_place
from gpufleet.settings.document import PATH_IN_BUCKET, DocumentError, FleetDocument, parse
from serving.cache import approval, publish
from serving.cache.approval import Approval
from serving.cache.manifest import OBJECT, Manifest, ManifestError
from serving.cache.store import read_object
from serving.cache.sync import fetch_manifest, served_digest

_HISTORY: Final = "history.json"
_LARGEST_DOCUMENT: Final = 16 * 1024 * 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The served revisions, oldest first, and the target of an unfinished rollback."""

    digests: tuple[str, ...] = ()
    going_back_to: str | None = None

    def with_served(self, digest: str | None, going_back_to: str | None) -> "History":
        """The history after `digest` was served. A digest that is present already moves to the end."""
        kept = tuple(old for old in self.digests if old != digest)
        return History(digests=(*kept, digest) if digest else kept, going_back_to=going_back_to)

    def before(self, served: str | None) -> str | None:
        """The revision that was served before `served`."""
        return next((digest for digest in reversed(self.digests) if digest != served), None)


class ModelRegistry:
    """One model in one bucket. Every method raises AppError for invalid data in the bucket and for refused access."""

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        self.place: StorageLocation = open_place(bucket)
        self.model = self.place.key(f"models/{name}")

    def served(self) -> str | None:
        """The digest that `served.json` names; None before the first rollout."""
        try:
            return served_digest(self.place.store, self.model)
        except FileNotFoundError:
            return None
        except (ManifestError, OSError) as error:
            raise self._error(error) from error

    def history(self) -> History:
        body = self._read(f"{self.model}/{_HISTORY}")
        if body is None:
            return History()
        try:
            found: dict[str, Any] = json.loads(body)
            going = found.get("going_back_to")
            return History(
                digests=tuple(str(digest) for digest in found["digests"]),
                going_back_to=None if going is None else str(going),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AppError(
                f"{self.model}/{_HISTORY}: is not a valid history of served revisions: correct or remove the file"
            ) from error

    def write_history(self, history: History) -> None:
        value = {"version": 1, "digests": list(history.digests), "going_back_to": history.going_back_to}
        try:
            self.place.writer.put_bytes(f"{self.model}/{_HISTORY}", json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise self._error(error) from error

    def serve(self, digest: str, *, going_back: bool = False, changes_running: bool = False) -> str | None:
        """Write the digest to `served.json`. Returns the digest that was there before.

        The history is written first, so that a rollback is possible even if the process dies in between.
        """
        before = self.served()
        noted = self.history().with_served(before if before != digest else None, digest if going_back else None)
        try:
            if not self.has(digest):
                raise ManifestError(f"{digest}: no such revision; add it first with `gpufleet model add`")
            self.write_history(noted)
            publish.rollout(
                self.place.writer,
                name=self.name,
                digest=digest,
                prefix=self.place.key("models"),
                changes_running=changes_running,
            )
        except (ManifestError, OSError) as error:
            raise self._error(error) from error
        return before

    def digests(self) -> list[str]:
        """All revisions: the served one, then earlier ones from newest to oldest, then the others."""
        try:
            found = [name for name in self.place.listing.folders(self.model) if _DIGEST.fullmatch(name)]
        except OSError as error:
            raise self._error(error) from error
        served = self.served()
        known = [digest for digest in (served, *reversed(self.history().digests)) if digest]
        return list(dict.fromkeys([*known, *found]))

    def has(self, digest: str) -> bool:
        """Whether a revision was added completely: its manifest is written last."""
        try:
            return self.place.writer.exists(f"{self.model}/{digest}/{OBJECT}")
        except OSError as error:
            raise self._error(error) from error

    def manifest(self, digest: str) -> Manifest | None:
        """The manifest of a revision; None if the revision was not added completely."""
        try:
            return fetch_manifest(self.place.store, self.model, digest)
        except FileNotFoundError:
            return None
        except (ManifestError, OSError, ValueError) as error:
            raise self._error(error) from error

    def approval(self, digest: str) -> Approval | None:
        try:
            return approval.read_approval(self.place.store, self.model, digest)
        except (ManifestError, OSError, ValueError) as error:
            raise self._error(error) from error

    def resolve(self, text: str) -> str:
        """The full digest of one that may be abbreviated."""
        if _DIGEST.fullmatch(text):
            return text
        found = [digest for digest in self.digests() if len(text) >= 12 and digest.startswith(text)]
        if len(found) == 1:
            return found[0]
        raise AppError(
            f"{text}: {len(found)} revisions of {self.name} begin with it; write 12 characters or more, or the "
            f"whole digest: `gpufleet model show --name {self.name} --bucket {self.bucket}` lists them",
            ErrorCode.WRONG_USE,
        )

    def check_approved(self, digest: str, documents: Sequence[FleetDocument], named: str | None) -> None:
        """Raises AppError for a revision that is not approved, if approval is required.

        `named`: the environment that the user gave; it is used only if no fleet document names one.
        """
        known = {document.environment for document in documents}
        if (mine := self._document()) is not None:
            known.add(mine.environment)
        if not known and named is not None:
            known.add(named)
        if known and not any(approval.needs_approval(environment) for environment in known):
            return
        if not known and not self.place.is_bucket:
            return
        if self.approval(digest) is not None:
            return
        why = (
            f"a revision is approved before it is served in {', '.join(sorted(known))}"
            if known
            else f"the bucket contains no {PATH_IN_BUCKET}, so it may be production's (set --environment NAME)"
        )
        raise AppError(
            f"{self.name} {digest[:12]}: is not approved, and {why}; check it and run `gpufleet model approve "
            f"{digest[:12]} --name {self.name} --bucket {self.bucket}`"
        )

    def _document(self) -> FleetDocument | None:
        body = self._read(PATH_IN_BUCKET, _LARGEST_DOCUMENT)
        try:
            return None if body is None else parse(body, f"{self.bucket}/{PATH_IN_BUCKET}")
        except DocumentError as error:
            raise AppError(str(error)) from error

    def _read(self, key: str, largest: int = 1024 * 1024) -> bytes | None:
        reader = self.place.store.connect()
        try:
            return read_object(reader, key, largest)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise AppError(f"{self.bucket}: {key}: {error}") from error
        finally:
            reader.close()

    def _error(self, error: Exception) -> AppError:
        return AppError(f"{self.bucket}: {self.model}: {error}")
