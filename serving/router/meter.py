"""Usage metering: requests, engine seconds and tokens from HAProxy's log. It reads and stores no bodies.

Counters and log position are saved together in one file, so that a restart counts nothing twice. The log may be
truncated or renamed. HAProxy keeps writing to a renamed file, so the meter follows it by inode until the new file is
not empty (a later HAProxy process writes there).
"""

import json
import os
import re
import subprocess
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from serving.router.render import LOG_FIELDS

BOUNDS_MS: Final = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)
RECENT_S: Final = 300
"""Window of the percentiles, in seconds."""
FREE_ABOVE: Final = 64 * 1024 * 1024
"""The meter frees the disk space of read log bytes in steps of this size."""
_READ: Final = 4 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class LatencyHistogram:
    """Counts by upper bound, as in Prometheus (not yet cumulative)."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    total_ms: int = 0

    def add(self, times_ms: Iterable[int]) -> None:
        for ms, count in Counter(times_ms).items():
            self.counts[bisect_left(BOUNDS_MS, ms)] += count
            self.total_ms += ms * count


@dataclass(slots=True, kw_only=True)
class KeyUsage:
    """Usage of one model in one pool by one key."""

    requests: int = 0
    failed: int = 0
    """Responses with status 5xx, or cut off."""
    replica_ms: int = 0
    """Time on a replica, without queue time."""
    tokens_in: int = 0
    tokens_out: int = 0
    unmetered: int = 0
    """Responses without usage in them (mostly streams); the engine's own counters include their tokens."""


UseKey = tuple[str, str, str]
"""Key name, model, pool; empty: none."""


_ANY: Final = r"\S*"
_COUNTED: Final = {
    "t": r"(\d+(?:\.\d+)?)", "status": r"(-?\d+)", "end": r"(\S+)", "pool": r"(\S+)", "model": r"(\S+)",
    "why": r"(\S+)", "key": r"(\S+)", "queue": r"(\S+)", "first": r"(\S+)", "all": r"(-?\d+)",
    "tokens": r"(?:(\d*)/(\d*)|-)",
}  # fmt: skip
_REQUEST: Final = re.compile(
    "^request "
    + " ".join(f"{name}={_COUNTED.get(name, _ANY)}" for name, _ in LOG_FIELDS)
    # lines of the previous release do not have this field
    + r"(?: client=\S*)?$",
    re.MULTILINE,
)
"""One line of a request; HAProxy also logs about its servers. A loaded router writes tens of thousands of lines per
second, so the meter finds and counts many at a time."""

_Kind = tuple[str, str, str, str, str, str]
"""Fields by which lines are grouped: pool, model, key, reason, status, and HAProxy's four termination letters (`----`
is a normal end)."""
_Row = tuple[str, str, str, str, str, str]
"""Fields that differ within a group: Unix seconds of arrival; ms in the queue, ms from the complete request to the
first byte, ms in total; input and output tokens. Empty, `-` or `-1`: unknown."""


def _by_kind(text: str) -> Mapping[_Kind, list[_Row]]:
    """Return the requests in a part of the log, by kind."""
    found: dict[_Kind, list[_Row]] = {}
    for at, status, end, pool, model, why, key, queue, first, all_ms, tokens_in, tokens_out in _REQUEST.findall(text):
        rows = found.setdefault((pool, model, key, why, status, end), [])
        rows.append((at, queue, first, all_ms, tokens_in, tokens_out))
    return found


def _word(text: str) -> str:
    return "" if text == "-" else text


def _numbers(texts: Iterable[str]) -> list[int]:
    """Return the known values."""
    return [int(text) for text in texts if text.isdigit()]


class Meter:
    """Reads one log from the last position, and counts its requests."""

    def __init__(self, log: Path, state: Path, free_above: int = FREE_ABOVE) -> None:
        self._log = log
        self._state = state
        self._free_above = free_above
        self.use: dict[UseKey, KeyUsage] = {}
        self.by_status: dict[tuple[str, str], int] = {}
        """Requests by pool and status class (`2xx`)."""
        self.by_reason: dict[tuple[str, str], int] = {}
        """Requests by pool and reason of the decision."""
        self.all_ms: dict[str, LatencyHistogram] = {}
        self.first_ms: dict[str, LatencyHistogram] = {}
        self.lines = 0
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        self._inode = 0
        self._offset = 0
        self._freed = 0
        self.lost = ""
        """Why the counters restarted; empty: they did not."""
        try:
            self._load()
        except (ValueError, KeyError, TypeError) as error:
            self._restart_counters(error)

    def read(self) -> int:
        """Count new lines; return the number of requests. Raises OSError."""
        before = self.lines
        for path in self._files():
            with path.open("rb") as log:
                for text in self._complete_lines_of(log.fileno()):
                    for kind, rows in _by_kind(text).items():
                        self._count(kind, rows)
        if self.lines != before:
            self._save()
        return self.lines - before

    def p95_ms(self, now: float) -> Mapping[str, float]:
        """Return the p95 of recent responses in ms, by pool; a pool without responses is absent."""
        found: dict[str, float] = {}
        for pool, samples in self._recent.items():
            while samples and samples[0][0] < now - RECENT_S:
                samples.popleft()
            if samples:
                ordered = sorted(ms for _, ms in samples)
                found[pool] = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        return found

    def _files(self) -> Iterable[Path]:
        """Yield the file that was read last, even if it was renamed, then the current file."""
        there = self._log.stat() if self._log.exists() else None
        if there is not None and there.st_ino == self._inode:
            yield self._log
            return
        if self._inode:
            yield from (p for p in self._log.parent.glob(self._log.name + "*") if p.stat().st_ino == self._inode)
        if there is not None and (there.st_size or not self._inode):
            self._inode, self._offset, self._freed = there.st_ino, 0, 0
            yield self._log

    def _complete_lines_of(self, file: int) -> Iterator[str]:
        if os.fstat(file).st_size < self._offset:
            self._offset = self._freed = 0  # truncated
        while chunk := os.pread(file, _READ, self._offset):
            whole = chunk.rfind(b"\n") + 1
            if whole == 0:
                return
            self._offset += whole
            yield chunk[:whole].decode(errors="replace")
            self._free(file)

    def _free(self, file: int) -> None:
        """Free the disk space of read lines. The file keeps its length; truncating it could lose new lines."""
        if self._offset - self._freed < self._free_above:
            return
        subprocess.run(
            ["fallocate", "--punch-hole", "--offset", "0", "--length", str(self._offset), f"/proc/self/fd/{file}"],
            pass_fds=(file,),
            check=False,
            capture_output=True,
            timeout=60,
        )
        self._freed = self._offset

    def _count(self, kind: _Kind, rows: list[_Row]) -> None:
        pool, model, key, why, status, end = kind
        name, code = _word(pool), int(status)
        self.lines += len(rows)
        _increment(self.by_status, (name, f"{code // 100}xx" if code > 0 else "cut"), len(rows))
        _increment(
            self.by_reason, (name, (_word(why) if name else "") or "none"), len(rows)
        )  # no pool: no reason either
        use = self.use.setdefault((_word(key), _word(model), name), KeyUsage())
        use.requests += len(rows)
        if code >= 500 or code < 0 or end[:1] in "SsPRKIUD":
            use.failed += len(rows)
        arrived, queued, first, took, tokens_in, tokens_out = zip(*rows, strict=True)
        all_ms = [max(int(ms), 0) for ms in took]
        waits = [int(ms) if ms.isdigit() else None for ms in queued]
        use.replica_ms += sum(max(ms - wait, 0) for ms, wait in zip(all_ms, waits, strict=True) if wait is not None)
        use.tokens_in += sum(_numbers(tokens_in))
        made = _numbers(tokens_out)
        use.tokens_out += sum(made)
        if 200 <= code < 300:
            use.unmetered += len(rows) - len(made)
            self.all_ms.setdefault(name, LatencyHistogram()).add(all_ms)
            begun = [(wait or 0) + int(ms) for wait, ms in zip(waits, first, strict=True) if ms.isdigit()]
            if begun:
                self.first_ms.setdefault(name, LatencyHistogram()).add(begun)
            recent = self._recent.setdefault(name, deque(maxlen=10_000))
            recent.extend(zip(map(float, arrived), all_ms, strict=True))

    def _save(self) -> None:
        state: dict[str, Any] = {
            "version": 1,
            "inode": self._inode,
            "offset": self._offset,
            "lines": self.lines,
            "use": [[*key, use.requests, use.failed, use.replica_ms, use.tokens_in, use.tokens_out, use.unmetered]
                    for key, use in self.use.items()],
            "by_status": [[*key, count] for key, count in self.by_status.items()],
            "by_reason": [[*key, count] for key, count in self.by_reason.items()],
            "all_ms": {pool: [h.total_ms, *h.counts] for pool, h in self.all_ms.items()},
            "first_ms": {pool: [h.total_ms, *h.counts] for pool, h in self.first_ms.items()},
        }  # fmt: skip
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(self._state)

    def _restart_counters(self, error: Exception) -> None:
        """Restart the counters at the end of the log, because earlier lines may no longer exist."""
        self.lost = f"{self._state}: cannot be read; the counters restart at 0"
        for counts in (self.use, self.by_status, self.by_reason, self.all_ms, self.first_ms):
            counts.clear()
        self.lines = 0
        if self._log.exists():
            found = self._log.stat()
            self._inode, self._offset, self._freed = found.st_ino, found.st_size, found.st_size

    def _load(self) -> None:
        if not self._state.exists():
            return
        state: dict[str, Any] = json.loads(self._state.read_text())
        self._inode, self._offset, self.lines = state["inode"], state["offset"], state["lines"]
        for key, model, pool, requests, failed, ms, tokens_in, tokens_out, unmetered in state["use"]:
            self.use[(key, model, pool)] = KeyUsage(
                requests=requests, failed=failed, replica_ms=ms, tokens_in=tokens_in, tokens_out=tokens_out,
                unmetered=unmetered,
            )  # fmt: skip
        self.by_status = {(pool, status): count for pool, status, count in state["by_status"]}
        self.by_reason = {(pool, why): count for pool, why, count in state["by_reason"]}
        for name, store in (("all_ms", self.all_ms), ("first_ms", self.first_ms)):
            for pool, (total, *counts) in state[name].items():
                store[pool] = LatencyHistogram(counts=counts, total_ms=total)


def _increment(counts: dict[tuple[str, str], int], key: tuple[str, str], more: int) -> None:
    counts[key] = counts.get(key, 0) + more
