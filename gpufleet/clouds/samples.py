"""Raw samples from Prometheus, as they were scraped."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.activity import CloudError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PrometheusSamples(Prometheus):
    """A metrics store that also returns the raw samples of a time span."""

    def raw(
        self, selector: str, since: datetime, until: datetime
    ) -> Sequence[tuple[Mapping[str, str], Iterator[tuple[datetime, float]]]]:
        """Labels and samples (time and value) of each series in the span. Each iterator can be read only once.

        Raises CloudError if the response is incomplete.
        """
        span = max(1, round((until - since).total_seconds()))
        arguments = {"query": f"{selector}[{span}s]", "time": f"{until.timestamp():.3f}"}
        answer = self._ask("POST", "/api/v1/query", data=arguments)
        if answer.get("resultType") != "matrix":
            raise CloudError(f"expected raw samples as a matrix, got {answer.get('resultType')!r}")
        return [
            (row["metric"], ((_moment(at), float(value)) for at, value in row["values"])) for row in answer["result"]
        ]


@lru_cache(maxsize=65_536)
def _moment(seconds: float) -> datetime:
    """Convert a timestamp. Prometheus stores milliseconds and returns seconds as a float.

    Cached, because all series of one target share their timestamps.
    """
    return _EPOCH + timedelta(milliseconds=round(seconds * 1000))
