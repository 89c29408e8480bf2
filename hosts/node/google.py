"""The cloud interface of a Compute Engine instance."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from gpufleet.clouds.gcp import signed
from gpufleet.domain.tags import PREEMPTION_NOTICE
from hosts.node.ports import CloudNotice, Notice
from serving.cache.store import ObjectStore

NOTICE: Final = timedelta(seconds=25)
"""Google terminates a preempted instance 30 s after the notice, which contains no time; 5 s are reserved for late
detection.

If the instance template requests a longer notice (`PREEMPTION_NOTICE`), the shutdown starts that much later. The
30 s after it are best effort, so they are not used then."""
_LATE_NOTICES: Final = timedelta(seconds=5)
_MOVES: Final = "TERMINATE_ON_HOST_MAINTENANCE"


class GoogleServices:
    """The Compute Engine metadata, Secret Manager and Cloud Storage calls that the instance needs."""

    def __init__(
        self, metadata: signed.GoogleMetadata, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Read the constant metadata. Raises OSError."""
        self._metadata = metadata
        self._now = now
        self._noticed_at: datetime | None = None
        self.instance_id = metadata.need("instance/name").strip()
        self.address = metadata.need("instance/network-interfaces/0/ip").strip()
        asked_for = metadata.get(f"instance/attributes/{PREEMPTION_NOTICE}")
        self._notice = max(NOTICE, timedelta(seconds=_integer_or_zero(asked_for)) - _LATE_NOTICES)
        self.machine_type = metadata.need("instance/machine-type").strip().rsplit("/", 1)[-1]

    def notices(self) -> list[CloudNotice]:
        """Return the notices of Compute Engine that apply now. Raises OSError."""
        found: list[CloudNotice] = []
        if (self._metadata.get("instance/preempted") or "").strip() == "TRUE":
            self._noticed_at = self._noticed_at or self._now()
            found.append(CloudNotice(kind=Notice.PREEMPTION, at=self._noticed_at + self._notice))
        if (self._metadata.get("instance/maintenance-event") or "").strip() == _MOVES:
            found.append(CloudNotice(kind=Notice.REBALANCE))
        return found

    def secret(self, where: str) -> str:
        """Read the secret `gcp-secret:projects/P/secrets/NAME`. Raises OSError."""
        kind, _, name = where.partition(":")
        if kind != "gcp-secret" or not name:
            raise OSError(f"secret {where!r}: on Google Cloud it must be gcp-secret:projects/P/secrets/NAME")
        return signed.secret(name, self._metadata.token())

    def store(self, bucket: str) -> ObjectStore:
        """Open the models' bucket `gs://name`. Raises OSError."""
        parts = urlsplit(bucket)
        if parts.scheme != "gs":
            raise OSError(f"bucket {bucket!r}: on Google Cloud it must be gs://name")
        return signed.GcsStore(parts.netloc, self._metadata.token)


def _integer_or_zero(text: str | None) -> int:
    """Parse an integer. 0 if the text is missing or invalid: the shortest notice applies then."""
    number = (text or "").strip()
    return int(number) if number.isascii() and number.isdigit() else 0
