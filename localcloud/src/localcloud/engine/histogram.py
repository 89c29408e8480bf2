"""A histogram of the simulated engine's page."""

import math
from collections.abc import Iterator, Mapping, Sequence

from serving.exposition import Sample


class Histogram:
    """Counts of observations in cumulative buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Take one observation in."""
        place = next((i for i, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[place] += 1
        self._sum += value

    def samples(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        """`_bucket`, `_sum` and `_count`."""
        seen = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            seen += count
            le = "+Inf" if math.isinf(bound) else repr(float(bound))
            yield Sample(name=f"{name}_bucket", labels={**labels, "le": le}, value=seen)
        yield Sample(name=f"{name}_count", labels=labels, value=seen)
        yield Sample(name=f"{name}_sum", labels=labels, value=self._sum)
