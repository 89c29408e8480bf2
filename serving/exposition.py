"""Writes Prometheus's text format (0.0.4), and reads it and OpenMetrics. Standard library only: it is part of the
node agent.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_TEXT: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_SAMPLE: Final = re.compile(
    rf"""([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{([^"}}]*(?:{_TEXT}[^"}}]*)*)\}})?\s+(\S+)(?:\s+[-+.\deE]+)?(?:\s+#.*)?"""
)
"""Name, labels and value; then a timestamp (OpenMetrics: with fractions) and an exemplar of OpenMetrics, unused."""
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_UNESCAPE: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line: a metric name, its labels and a value."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    value: float


def render_family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    """Write the HELP line, the TYPE line and the samples of one metric; each line ends in a newline."""
    escaped = help_text.replace("\\", "\\\\").replace("\n", "\\n")
    lines = [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]
    lines += [render_sample(sample) for sample in samples]
    return "\n".join(lines) + "\n"


def render_sample(sample: Sample) -> str:
    """Write one sample line, without the newline."""
    if not sample.labels:
        return f"{sample.name} {_number(sample.value)}"
    labels = ",".join(f'{key}="{_escape(value)}"' for key, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {_number(sample.value)}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def parse(text: str) -> Iterator[Sample]:
    """Yield the samples of a page, without comments and blank lines. Raises ValueError that names an invalid line."""
    for line in text.split("\n"):  # label values may have other characters that end a line
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(stripped)
        if match is None:
            raise ValueError(f"expected a sample in the text format, got {stripped[:120]!r}")
        yield Sample(name=match[1], labels=_labels(match[2] or ""), value=_value(match[1], match[3]))


def _value(name: str, text: str) -> float:
    # Python also reads 1_000 and the digits of other scripts, which the format does not have
    if "_" not in text and text.isascii():
        with contextlib.suppress(ValueError):
            return float(text)
    raise ValueError(f"expected a number as the value of {name}, got {text[:120]!r}")


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            raise ValueError(f"expected labels in the text format, got {text[position:][:120]!r}")
        labels[match[1]] = _UNESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], match[2])
        position = match.end()
    return labels


def total(samples: Iterable[Sample], name: str) -> float | None:
    """Return the sum over all series of a metric; None when the page has no such series (missing is not zero)."""
    values = [sample.value for sample in samples if sample.name == name]
    return sum(values) if values else None
