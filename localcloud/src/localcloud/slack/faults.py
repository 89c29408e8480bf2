"""Faults of the Slack sink: network errors and errors of Slack, on request."""

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """The fault of one post."""

    THROTTLE = "429"
    """Refused, with Retry-After."""
    ERROR = "500"
    """Not accepted, answered 500."""
    ERROR_AFTER = "500-after"
    """Accepted, answered 500."""
    DROP = "drop"
    """The connection closes; not accepted."""
    DROP_AFTER = "drop-after"
    """Accepted; the connection closes without an answer."""
    HANG_AFTER = "hang-after"
    """Accepted; no answer comes until the poster gives up."""

    @property
    def accepts(self) -> bool:
        """Whether the message is stored nevertheless."""
        return self in (Fault.ERROR_AFTER, Fault.DROP_AFTER, Fault.HANG_AFTER)


@dataclass(slots=True)
class FaultPlan:
    """The faults of posts: first a queue, then a random share of all posts, with a seed."""

    queue: list[Fault] = field(default_factory=list[Fault])
    kinds: Sequence[Fault] = ()
    share: float = 0.0
    retry_after: float = 1.0
    hang_s: float = 30.0
    _random: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - not for secrets
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, kinds: Sequence[Fault], share: float, seed: int) -> None:
        """Let this share of the following posts fail with one of these faults."""
        with self._lock:
            self.kinds, self.share, self._random = tuple(kinds), share, random.Random(seed)  # noqa: S311

    def next(self) -> Fault | None:
        """The fault of this post, if any."""
        with self._lock:
            if self.queue:
                return self.queue.pop(0)
            if self.kinds and self._random.random() < self.share:
                return self._random.choice(self.kinds)
            return None
