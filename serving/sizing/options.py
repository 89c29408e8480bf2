"""Options of serving that change memory and speed: number formats of weights, and speculative decoding.

The effect on memory is computed. The effect on speed is a published factor for a model class, a GPU, an engine and a
range of concurrent requests (`data/effects.csv`, sources in `data/SOURCE.md`); outside these there is none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from typing import Final

from serving.sizing.measurements import Class, row_shape, shape_of, table
from serving.sizing.model import ModelShape
from serving.sizing.speed import Speed, SpeedError

_GROUP: Final = 128
"""Weights per group of AWQ and GPTQ checkpoints, the usual value."""


class ServingOption(StrEnum):
    """An option. The values are stable codes."""

    FP8 = "fp8"
    """8-bit floating point weights and activations. vLLM quantizes 16-bit weights while it loads them."""
    INT8 = "int8"
    """8-bit integer weights and activations (W8A8); on Neuron devices weights only."""
    AWQ = "awq"
    """4-bit integer weights, 16-bit activations."""
    GPTQ = "gptq"
    """4-bit integer weights, 16-bit activations."""
    NGRAM = "ngram"
    """Speculative decoding by n-grams of the prompt."""
    EAGLE = "eagle"
    """Speculative decoding by an EAGLE head."""
    DRAFT = "draft"
    """Speculative decoding by a smaller model."""


BITS: Final = {
    ServingOption.FP8: Fraction(8),
    ServingOption.INT8: Fraction(8),
    # a group has a 16-bit scale and a 4-bit zero point
    ServingOption.AWQ: 4 + Fraction(20, _GROUP),
    ServingOption.GPTQ: 4 + Fraction(20, _GROUP),
}
"""Bits per weight, for weights that are 16 bits without the option. Scales of whole rows (FP8, INT8) are not counted:
below 0.1 %."""
NEEDS_CHECKPOINT: Final = frozenset({ServingOption.INT8, ServingOption.AWQ, ServingOption.GPTQ})
"""Options that need a checkpoint in their format: the engine cannot make it from 16-bit weights."""
NEEDS_DRAFT: Final = frozenset({ServingOption.EAGLE, ServingOption.DRAFT})
"""Options with a second checkpoint, whose weights are on each GPU, too."""

SOURCES: Final = {
    "accelmark": "AccelMark",
    "nebius": "Nebius Academy, LLM Engineering Essentials, 5.4",
    "neuron-trn2": "AWS Neuron documentation",
    "sglang": "SGLang documentation, MT-Bench",
    "vllm-blog": "vLLM blog",
}
"""For people, by the code in the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A published effect of an option on speed."""

    option: ServingOption
    method: str
    model: str
    shape: Class
    gpu: str
    gpus: int
    concurrency: range | None
    """Concurrent requests for which it was measured; None: its source does not state them."""
    load: str
    """The load, in the words of the source."""
    factor: Fraction
    """Speed with the option divided by speed without it; below 1 it is slower."""
    measure: str
    engine: str
    source: str
    date: str

    def __str__(self) -> str:
        when = f", {self.date}" if self.date else ""
        return (
            f"{self.method}: {float(self.factor):.2f} × {self.measure} at {self.load}, {self.model} on "
            f"{self.gpus} × {self.gpu}, {self.engine} ({SOURCES[self.source]}{when})"
        )


@cache
def effects() -> tuple[Effect, ...]:
    """Return all published effects."""
    return tuple(
        Effect(
            option=ServingOption(row["option"]),
            method=row["method"],
            model=row["model"],
            shape=row_shape(row),
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            concurrency=range(int(row["concurrency_min"]), int(row["concurrency_max"]) + 1)
            if row["concurrency_min"]
            else None,
            load=row["load"],
            factor=Fraction(row["factor"]),
            measure=row["measure"],
            engine=row["engine"],
            source=row["source"],
            date=row["published"],
        )
        for row in table("effects.csv")
    )


def effects_on(option: ServingOption, model: ModelShape, gpu: str, gpus: int, engine: str) -> list[Effect]:
    """Return the effects on models of this shape on these GPUs with an engine, newest first."""
    shape = shape_of(model)
    found = [
        effect
        for effect in effects()
        if (effect.option, effect.shape, effect.gpu, effect.gpus) == (option, shape, gpu, gpus)
        and effect.engine.lower().startswith(engine)
        and effect.concurrency is not None
    ]
    return sorted(found, key=lambda effect: effect.date, reverse=True)


def applied(speed: Speed, found: Iterable[Effect]) -> Speed | None:
    """Return a speed with the newest effect that was measured at its concurrency; None: none was.

    Other effects of the same range widen the error. The time to the first token stays: none of them measured it.
    """
    at = [one for one in found if one.concurrency and speed.concurrency in one.concurrency]
    if not at or speed.error is None or speed.error.high is None or speed.itl_s is None:
        return None
    newest = at[0]
    factor = float(newest.factor)
    least, most = (float(pick(one.factor for one in at)) / factor for pick in (min, max))
    return replace(
        speed,
        requests_per_s=speed.requests_per_s * factor,
        itl_s=speed.itl_s / factor,
        source=f"{speed.source}; {newest}",
        error=SpeedError(
            low=(1 + speed.error.low) * least - 1,
            high=(1 + speed.error.high) * most - 1,
            basis=f"{speed.error.basis}; {len(at)} published effect(s) of {newest.option}",
        ),
    )
