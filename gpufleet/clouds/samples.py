"""Raw samples of Prometheus: what was scraped, not what a rate makes of it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from gpufleet.clouds.prometheus import Prometheus
from gpufleet.domain.activity import CloudError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PrometheusSamples(Prometheus):
    """A metrics store that gives the samples of a span."""

    def raw(
        self, selector: str, since: datetime, until: datetime
    ) -> Sequence[tuple[Mapping[str, str], Iterator[tuple[datetime, float]]]]:
        """Labels, and times with values (to be read once), of each series of the span.

        Raises CloudError when the answer is not whole.
        """
        span = max(1, round((until - since).total_seconds()))
        arguments = {"query": f"{selector}[{span}s]", "time": f"{until.timestamp():.3f}"}
        answer = self._ask("POST", "/api/v1/query", data=arguments)
        if answer.get("resultType") != "matrix":
            raise CloudError(f"raw samples came as {answer.get('resultType')!r}, not as a matrix")
        return [
            (row["metric"], ((_moment(at), float(value)) for at, value in row["values"])) for row in answer["result"]
        ]


@lru_cache(maxsize=65_536)
def _moment(seconds: float) -> datetime:
    """Prometheus keeps milliseconds; its JSON has them as a float. All series of a target share theirs."""
    return _EPOCH + timedelta(milliseconds=round(seconds * 1000))
