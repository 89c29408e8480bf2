"""Counts of the API operations that were called, by caller. Tests check permissions and call rates with them."""

import threading
from collections import Counter


class Calls:
    """Counts per service, operation and caller. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def record(self, service: str, operation: str, principal: str) -> None:
        """One call."""
        with self._lock:
            self._counts[service, operation, principal] += 1

    def as_json(self) -> list[dict[str, object]]:
        with self._lock:
            return [
                {"service": service, "operation": operation, "principal": principal, "count": count}
                for (service, operation, principal), count in sorted(self._counts.items())
            ]
