"""What the engine of a machine does, estimated from its page /metrics and its gate."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from serving import engine_gate, metrics
from serving.engines import CONTRACTS
from serving.engines.reading import read
from serving.exposition import Sample, parse
from serving.metrics import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the engine did since the last sample."""

    up: bool = False
    """It answers, so its program holds the accelerators."""
    active: float = 0.0
    """Share of the time in which it computed."""


@dataclass(slots=True)
class EngineProbe:
    """Reads an engine. It remembers the tokens of the last sample."""

    url: str
    tokens: float | None = field(default=None, init=False)

    def sample(self, seconds: float) -> Work:
        """The work since the last call, `seconds` ago."""
        page = self._page()
        return Work(up=page is not None, active=self._activity(page or [], seconds))

    def _page(self) -> list[Sample] | None:
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=0.8) as answer:
                return list(parse(answer.read().decode()))
        except (OSError, ValueError):
            return None

    def _activity(self, page: list[Sample], seconds: float) -> float:
        """Activity from 0 to 1, estimated from running requests and processed tokens."""
        values = _values_of(page)
        gauges = (values.get(metric, 0.0) for metric in (metrics.REQUESTS_RUNNING, metrics.OPEN_REQUESTS))
        running = max(*gauges, _opened_at_gate(self.url))
        tokens = values.get(metrics.LIVE_TOKENS)
        if tokens is None and metrics.GENERATION_TOKENS in values and metrics.PROMPT_TOKENS in values:
            tokens = values[metrics.GENERATION_TOKENS] + values[metrics.PROMPT_TOKENS]
        moved = 0.0 if tokens is None or self.tokens is None else max(0.0, tokens - self.tokens)
        self.tokens = tokens
        if running == 0 and moved == 0:
            return 0.0
        return min(0.97, 0.55 * (running > 0) + moved / max(seconds, 0.1) / 400 + 0.05)


def _values_of(page: list[Sample]) -> Mapping[Metric, float]:
    """The canonical values of a page, of whichever engine it is, without gauges that keep old values."""
    names = {sample.name for sample in page}
    for contract in CONTRACTS.values():
        if any(series.name in names for series in contract.series):
            stale = {series.measures for series in contract.series if series.kept_at_rest}
            values = read(contract, contract.newest, page).values
            return {metric: value for metric, value in values.items() if metric not in stale}
    return {}


def _opened_at_gate(engine_url: str) -> float:
    """Open requests at the gate of this machine's engine; 0 without one."""
    host = urlsplit(engine_url).hostname
    try:
        with urllib.request.urlopen(f"http://{host}:{engine_gate.COUNT_PORT}/", timeout=0.8) as answer:
            return float(answer.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
