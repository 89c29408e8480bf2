"""What the numbers of one instance's accelerators prove, as the query returns them."""

from datetime import UTC, datetime, timedelta

import pytest

from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import UnknownCode
from watchdogs.accelerator_evidence import AcceleratorStats, accelerator_evidence

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SHORT = CONTRACTS["nvidia"].evidence.window / 4
LONG = CONTRACTS["nvidia"].evidence.window
IN_WINDOW = {
    "kind": 9.0,
    f"metered:{metrics.ENERGY}": 1.0,
    **{f"proof:{metric}": 1.0 for metric in CONTRACTS["nvidia"].evidence.idle},
}
NOW_REPORTED = {"units": 1.0, "gpus": 1.0}
FEW = {f"pulse:{metrics.ENERGY}": 1.0}
ENOUGH = {f"pulse:{metrics.ENERGY}": 2.0}


@pytest.mark.parametrize(
    ("window", "answers", "numbers", "unknown"),
    [
        pytest.param(SHORT, 1.0, NOW_REPORTED | FEW, (UnknownCode.WINDOW_TOO_SHORT,), id="too few measurements"),
        pytest.param(SHORT, 1.0, NOW_REPORTED | ENOUGH, (), id="enough measurements"),
        pytest.param(LONG, 1.0, NOW_REPORTED | FEW, (), id="long window"),
        pytest.param(SHORT, 0.0, FEW, (), id="exporter does not answer"),
        pytest.param(SHORT, None, FEW, (), id="target is gone"),
        pytest.param(
            SHORT, 0.0, NOW_REPORTED | FEW, (UnknownCode.WINDOW_TOO_SHORT,), id="old numbers of a failed scrape"
        ),
        pytest.param(SHORT, 1.0, FEW, (UnknownCode.WINDOW_TOO_SHORT,), id="exporter answers without a device"),
    ],
)
def test_a_silent_exporter_does_not_make_the_window_too_short(
    window: timedelta, answers: float | None, numbers: dict[str, float], unknown: tuple[UnknownCode, ...]
) -> None:
    stats = {} if answers is None else {"answers": answers}
    answer = AcceleratorStats(stats=stats, kinds={"nvidia": IN_WINDOW | numbers})
    found = accelerator_evidence(answer, window, timedelta(seconds=1), NOW)
    assert found.unknown == unknown
    # either the window is refused, or the missing number of devices is the reason to keep the instance
    assert unknown or found.gpus == numbers.get("gpus")
