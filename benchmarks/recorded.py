"""Converts available public histories to the format that `gpufleet replay` reads. This repository contains none of
them.

`GPUFLEET_HISTORIES` names a folder with one subfolder for each public data set: `bamboo_spot` (uclasystem/bamboo,
NSDI '23: events of spot clusters), `spot_traces` (skypilot-org/spot-traces: capacity of zones), `idle_gpus`
(alibaba/clusterdata, GenTD26: activity of each GPU of a service), `servegen` (alibaba/ServeGen: rates by client and
window, one file for each model), `azure_llm_2023` (Azure/AzurePublicDataset) and `mooncake_fast25`
(kvcache-ai/Mooncake). Missing data sets are skipped.
"""

import csv
import gzip
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

FOLDER: Final = "GPUFLEET_HISTORIES"
LOOK: Final = 60
"""Sampling interval in seconds of a market that was recorded as events."""
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One recorded history, as a file that a replay reads."""

    name: str
    path: Path


def folder() -> Path | None:
    """Return the folder of the data sets. None: the variable is not set."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None


def markets(source: Path, into: Path) -> Iterator[History]:
    """Yield zones of spot-traces and clusters of bamboo. A bamboo cluster shows the capacity of one zone, sampled
    each minute, possibly not all of it.
    """
    for path in sorted(source.glob("spot_traces/*.csv.gz")):
        yield History(name=path.name.removesuffix(".csv.gz"), path=path)
    for path in sorted(source.glob("bamboo_spot/*.csv")):
        # the p2 history counts hours, the others seconds; the `_scaled` files repeat the others in hours
        if path.stem.endswith("_scaled"):
            continue
        unit = _HOUR if "p2-xlarge" in path.stem else 1.0
        with path.open(encoding="utf-8") as file:
            events = [(float(at) * unit, int(count)) for at, count in csv.reader(file)]
        if len(events) < 2:
            continue  # the history has no changes
        made = into / f"{path.stem}.csv"
        made.write_text("time_s,zone,available\n" + "".join(_looks(events)))
        yield History(name=path.stem.removeprefix("aws-spot-instances-")[:28], path=made)


def _looks(events: list[tuple[float, int]]) -> Iterator[str]:
    """Yield a line per minute with the count after the latest event."""
    at = 0
    for second in range(int(events[0][0]), int(events[-1][0]) + LOOK, LOOK):
        while at + 1 < len(events) and events[at + 1][0] <= second:
            at += 1
        yield f"{second},zone,{events[at][1]}\n"


def requests(source: Path, into: Path) -> Iterator[History]:
    """Yield histories of requests with their tokens, and of request rates."""
    for path in sorted(source.glob("servegen/*_client_rates.csv.gz")):
        name = f"servegen {path.name.removesuffix('_client_rates.csv.gz').removeprefix('language_')}"
        yield _written(into, name, "time_s,rate_rps", _rates(path, (0, 1)))
        for number, half in enumerate(("even", "odd")):
            yield _written(into, f"{name}, {half} clients", "time_s,rate_rps", _rates(path, (number,)))
    for data_set, files, lines in _REQUESTS:
        for path in sorted(source.glob(f"{data_set}/{files}")):
            yield _written(into, data_set, "time_s,input_tokens,output_tokens", lines(path))


def _written(into: Path, name: str, header: str, lines: Iterator[str]) -> History:
    made = into / f"{name.replace(' ', '-')}.csv"
    made.write_text(f"{header}\n" + "".join(lines))
    return History(name=name, path=made)


def _rates(path: Path, halves: Sequence[int]) -> Iterator[str]:
    """Yield the summed rates of a model's clients with even (0) or odd (1) numbers. A window without a row had no
    request.
    """
    rates: dict[int, float] = defaultdict(float)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if int(row["client"]) % 2 not in halves:
                continue
            rates[int(float(row["t_s"]))] += float(row["rate_rps"])
    times = sorted(rates)
    window = min(later - earlier for earlier, later in zip(times, times[1:], strict=False))
    for at in range(times[0], times[-1] + window, window):
        yield f"{at},{rates.get(at, 0.0):.6f}\n"


def _azure(path: Path) -> Iterator[str]:
    first: datetime | None = None
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            # the file has seven digits of a second; Python supports six
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = at if first is None else first
            seconds = (at - first).total_seconds()
            yield f"{seconds:.6f},{row['ContextTokens']},{row['GeneratedTokens']}\n"


def _mooncake(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield f"{row['timestamp'] / 1000:.3f},{row['input_length']},{row['output_length']}\n"


_REQUESTS: Final[tuple[tuple[str, str, Callable[[Path], Iterator[str]]], ...]] = (
    ("azure_llm_2023", "*.csv", _azure),
    ("mooncake_fast25", "conversation_trace.jsonl", _mooncake),
)

DATA_SETS: Final[Mapping[str, str]] = {
    "bamboo_spot": "spot",
    "spot_traces": "spot",
    "idle_gpus": "idle",
    "servegen": "scale",
    "azure_llm_2023": "scale",
    "mooncake_fast25": "scale",
}
"""The replay for each data set, by folder."""
