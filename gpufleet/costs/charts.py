"""Charts of a report as SVG (for the page) and PNG (for Slack), drawn with matplotlib without a display.

Texts get the page's colour: they are drawn in a colour that nothing else has, which is replaced by `currentColor`.
"""

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO, StringIO
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from gpufleet.costs.series import Lane, TimeBucket
from gpufleet.domain.model import CapacityType
from gpufleet.ledger.facts import EndCause

LIBRARY: Final = "matplotlib"
"""The module that draws. It is in the extra `plots`."""
COLOURS: Final[Mapping[CapacityType, str]] = {
    CapacityType.RESERVED: "#4477aa",
    CapacityType.SPOT: "#228833",
    CapacityType.ON_DEMAND: "#cc6633",
    CapacityType.FLEX_START: "#aa3377",
}
"""Distinguishable with any colour vision (from Paul Tol's bright scheme)."""
IDLE: Final = "#bbbb33"
_TEXT: Final = "#010203"
_ENDS: Final = {EndCause.PREEMPTED: "x", EndCause.ENDED: "|", EndCause.ABSENT: "."}


def cost_over_time(buckets: Sequence[TimeBucket], timezone: str) -> Any:
    """USD per bucket, stacked by capacity type."""
    figure, axes = _canvas(3.0)
    starts = [bucket.start for bucket in buckets]
    widths = [(bucket.end - bucket.start).total_seconds() / 86_400 * 0.92 for bucket in buckets]
    above, below = [0.0] * len(buckets), [0.0] * len(buckets)
    for kind in CapacityType:
        heights = [float(bucket.usd[kind]) for bucket in buckets]
        if not any(heights):
            continue
        # credits are drawn below zero, so that they hide nothing
        floor = [high if height >= 0 else low for height, high, low in zip(heights, above, below, strict=True)]
        axes.bar(starts, heights, widths, bottom=floor, align="edge", color=COLOURS[kind], label=str(kind))
        above = [high + max(height, 0) for high, height in zip(above, heights, strict=True)]
        below = [low + min(height, 0) for low, height in zip(below, heights, strict=True)]
    axes.axhline(0, color=_TEXT, linewidth=0.8)
    axes.set_ylabel("USD")
    _finish(axes, timezone, legend=any(above))
    return figure


def unit_cost_bars(values: Mapping[str, Decimal], unit: str) -> Any:
    """One horizontal bar per name."""
    names = list(values)[::-1]
    figure, axes = _canvas(0.7 + 0.36 * max(len(names), 1))
    bars = axes.barh([_short(name) for name in names], [float(values[name]) for name in names], color="#4477aa")
    axes.bar_label(bars, labels=[f" {values[name]:,.4f}" for name in names], color=_TEXT, fontsize=8)
    axes.set_xlabel(unit)
    axes.margins(x=0.18)
    return figure


def timeline(lane: Lane, timezone: str, window: tuple[datetime, datetime]) -> Any:
    """A pool's instances from launch to end; a cross marks a preemption, a stroke an end by gpufleet or a user."""
    figure, axes = _canvas(0.8 + 0.16 * max(len(lane.bars), 2))
    for row, bar in enumerate(lane.bars):
        length = (bar.end - bar.start).total_seconds() / 86_400
        axes.barh(row, length, left=bar.start, height=0.7, color=COLOURS[bar.capacity_type])
        for start, end in bar.idle:
            axes.barh(row, (end - start).total_seconds() / 86_400, left=start, height=0.3, color=IDLE)
        if bar.end_cause is not None:
            axes.plot([bar.end], [row], _ENDS[bar.end_cause], color=_TEXT, markersize=6)
    axes.set_yticks([])
    axes.set_xlim(*window)
    axes.invert_yaxis()
    _finish(axes, timezone, legend=False)
    return figure


def svg(figure: Any, label: str) -> str:
    """The chart as an SVG element that fits its column, without the time and the program's name."""
    text = StringIO()
    with _any_letters():
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    body = text.getvalue()
    body = body[body.index("<svg") :].replace(_TEXT, "currentColor")
    return body.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def png(figure: Any) -> bytes:
    """The chart on a white background, for Slack."""
    body = BytesIO()
    with _any_letters():
        figure.savefig(body, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    return body.getvalue()


@contextmanager
def _any_letters() -> Generator[None]:
    """Suppress warnings about letters that the measuring font lacks; viewers of the SVG have their own fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _canvas(height: float) -> tuple[Any, Any]:
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = matplotlib.rcParams
    settings.update({"svg.fonttype": "none", "svg.hashsalt": "gpu-fleet", "font.family": "sans-serif"})
    figure: Any = cast(Any, Figure)(figsize=(7.2, height), layout="constrained")
    axes: Any = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for part in (axes.spines["left"], axes.spines["bottom"]):
        part.set_color(_TEXT)
    axes.tick_params(colors=_TEXT, labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(_TEXT)
        label.set_size(8)
    return figure, axes


def _finish(axes: Any, timezone: str, *, legend: bool) -> None:
    from matplotlib import dates

    module: Any = dates
    zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    locator = module.AutoDateLocator(tz=zone, minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(module.ConciseDateFormatter(locator, tz=zone))
    axes.xaxis.get_offset_text().set_color(_TEXT)
    axes.xaxis.get_offset_text().set_size(8)
    if legend:
        axes.legend(frameon=False, fontsize=8, labelcolor=_TEXT, ncols=3, loc="upper left", bbox_to_anchor=(0, 1.18))


def _short(name: str) -> str:
    # matplotlib interprets text between two dollar signs as mathematics
    plain = name.replace("$", r"\$")
    return plain if len(plain) <= 28 else plain[:27] + "…"
