"""A fault: its name, how it is injected and cleared, and how long it lasts. See contributing/add-a-fault.md."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.testbed import ChaosTestbed


@dataclass(slots=True)
class Memory:
    """Data that a fault keeps from its injection until it is cleared."""

    held: dict[str, Any] = field(default_factory=dict[str, Any])


Step = Callable[[ChaosTestbed, Memory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure that a run injects."""

    name: str
    inject: Step
    heal: Step
    lasts_s: float
    """Duration in a short run."""
    long_s: float
    """Duration in a long run."""
    needs_whole: bool = False
    """Whether all replicas must serve before it starts, because it removes some of them."""


def draw(seed: int, faults: Sequence[Fault]) -> Iterator[Fault]:
    """All faults in an order that depends on the seed, then again in another order, without end."""
    order = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        yield from order.sample(list(faults), len(faults))


def nothing(testbed: ChaosTestbed, memory: Memory) -> None:
    """For a fault that ends by itself."""


def down(name: str, how: Callable[[ChaosTestbed, str], None], *parts: str, lasts_s: float, long_s: float) -> Fault:
    """Stop processes of the control host in this order with `how` (ChaosTestbed.kill or ChaosTestbed.end), and start
    them in reverse order."""
    return Fault(
        name=name,
        inject=each(how, *parts),
        heal=each(ChaosTestbed.start, *reversed(parts)),
        lasts_s=lasts_s,
        long_s=long_s,
    )


def still(name: str, part: str, *, lasts_s: float, long_s: float) -> Fault:
    """A process of the control host is suspended: its ports are open, but it does not respond."""
    return Fault(
        name=name,
        inject=each(ChaosTestbed.freeze, part),
        heal=each(ChaosTestbed.thaw, part),
        lasts_s=lasts_s,
        long_s=long_s,
    )


def each(step: Callable[[ChaosTestbed, str], None], *parts: str) -> Step:
    """Apply the step to each of these processes, in this order."""

    def all_of_them(testbed: ChaosTestbed, memory: Memory) -> None:
        for part in parts:
            step(testbed, part)

    return all_of_them
