"""A fault: its name, how it is injected and healed, and how long it lasts. See contributing/add-a-fault.md."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.stage import Stage


@dataclass(slots=True)
class Memory:
    """What a fault must know when it is mended."""

    held: dict[str, Any] = field(default_factory=dict[str, Any])


Step = Callable[[Stage, Memory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    inject: Step
    heal: Step
    lasts_s: float
    """In the short form."""
    long_s: float
    """In the long form."""
    needs_whole: bool = False
    """Whether it begins with all replicas serving, since it takes some of them."""


def draw(seed: int, faults: Sequence[Fault]) -> Iterator[Fault]:
    """All of them in an order of the seed's, then again in another one, for ever."""
    order = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        yield from order.sample(list(faults), len(faults))


def nothing(stage: Stage, memory: Memory) -> None:
    """What ends by itself."""


def down(name: str, how: Callable[[Stage, str], None], *parts: str, lasts_s: float, long_s: float) -> Fault:
    """Processes of the control host end, in this order, `how`: Stage.kill or Stage.end; started in the other one."""
    return Fault(
        name=name, inject=each(how, *parts), heal=each(Stage.start, *reversed(parts)), lasts_s=lasts_s, long_s=long_s
    )


def still(name: str, part: str, *, lasts_s: float, long_s: float) -> Fault:
    """A process of the control host stands still: its ports are open, and nobody answers."""
    return Fault(
        name=name, inject=each(Stage.freeze, part), heal=each(Stage.thaw, part), lasts_s=lasts_s, long_s=long_s
    )


def each(step: Callable[[Stage, str], None], *parts: str) -> Step:
    """The same with each of these processes, in this order."""

    def all_of_them(stage: Stage, memory: Memory) -> None:
        for part in parts:
            step(stage, part)

    return all_of_them
