"""A pool's cost by team: split by the engine seconds that the router counted. Pure.

Each state's amount is split by the same weights, in steps of 1e-9 dollar-seconds, and the parts add up to it; shown
cents are rounded together (largest remainder). Tokens of a part are exact where every answer reported its usage, else
the engines' tokens of the pool are split by engine seconds and the parts are labelled estimated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gpufleet.costs.figures import Figure
from gpufleet.domain import money
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.tables import COUNTERS
from gpufleet.ledger.teams import TeamUse

ENGINE_SECONDS: Final = "engine-seconds"
NO_KEY: Final = "(no key)"


class TokenBasis(StrEnum):
    """How the tokens of a part are known."""

    EXACT = "exact"
    ESTIMATED = "estimated"


class Part(StrEnum):
    """Whose part of a pool a share is."""

    TEAM = "team"
    MODEL = "model"
    """Requests that name the pool's model itself."""
    ADAPTER = "adapter"
    NOT_RECORDED = "not-recorded"
    """Requests that the router did not record, or recorded without a model name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseShare:
    """A part of one pool."""

    pool: str
    name: str
    """The team, or the model name of the requests."""
    part: Part
    engine_ms: int
    weight: Decimal
    """The pool's cost is split by these weights."""
    figure: Figure
    counted: TokenBasis


def split_by_engine_seconds(pool: str, whole: Figure, uses: Mapping[str, TeamUse]) -> list[UseShare]:
    """A pool's figure by team; empty when no engine seconds are known."""
    names = [name for name in sorted(uses) if uses[name].replica_ms > 0]
    weights = [Decimal(uses[name].replica_ms) for name in names]
    parts = [(name or NO_KEY, Part.TEAM, uses[name]) for name in names]
    return shares(pool, whole, parts, weights) if names else []


def shares(
    pool: str,
    whole: Figure,
    parts: Sequence[tuple[str, Part, TeamUse]],
    weights: Sequence[Decimal],
    *,
    consistent: bool = True,
) -> list[UseShare]:
    """A pool's figure by weight: name, kind and use of each part.

    `consistent`: whether the tokens of the parts are within those of the pool; if not, they are estimated.
    """
    figures = _dealt(whole, weights)
    exact = consistent and all(use.unmetered == 0 for *_, use in parts)
    compared = whole.tokens.total is not None and whole.energy.compared_tokens == whole.tokens.total
    dealt = zip(figures, parts, _tokens(whole.tokens, weights), whole.energy.split(weights), strict=True)
    for figure, (*_, use), tokens, energy in dealt:
        figure.tokens = Tokens(prompt=use.tokens_in, generation=use.tokens_out) if exact else tokens
        figure.energy = energy.compared_with(figure.tokens) if compared else energy
        figure.unpriced, figure.unbounded = whole.unpriced, whole.unbounded
        figure.instances = set(whole.instances)
    return [
        UseShare(
            pool=pool,
            name=name,
            part=part,
            engine_ms=use.replica_ms,
            weight=weight,
            figure=figure,
            counted=TokenBasis.EXACT if exact else TokenBasis.ESTIMATED,
        )
        for (name, part, use), weight, figure in zip(parts, weights, figures, strict=True)
    ]


_FINE: Final = Decimal("1e-30")


def shown_usd(shares: Sequence[UseShare]) -> list[Decimal]:
    """The cost of each part of one pool in USD, rounded together: they add up to the pool's rounded cost."""
    amounts = [share.figure.allocation for share in shares]
    exact = [money.usd(amount, _FINE) for amount in amounts]
    return list(money.rounded_parts(exact, money.usd(money.total(amounts)), money.NANO))


def _dealt(whole: Figure, weights: Sequence[Decimal]) -> list[Figure]:
    """Amounts and times by weight."""
    figures = [Figure() for _ in weights]
    for state, amount in whole.amounts.items():
        for figure, part in zip(figures, _parts(amount, weights), strict=True):
            figure.amounts[state] = part
    for state, time in whole.times.items():
        for figure, part in zip(figures, split_time(time, weights), strict=True):
            figure.times[state] = part
    for kind, amount in whole.adjustments.items():
        for figure, part in zip(figures, _parts(amount, weights), strict=True):
            figure.adjustments[kind] = part
    for name in ("spot", "spot_on_demand", "spot_uncompared", "on_demand", "too_much", "too_little"):
        for figure, part in zip(figures, _parts(getattr(whole, name), weights), strict=True):
            setattr(figure, name, part)
    return figures


def _parts(amount: Decimal, weights: Sequence[Decimal]) -> Sequence[Decimal]:
    if amount >= 0:
        return money.split(amount, weights)
    return [-part for part in money.split(-amount, weights)]


def split_time(time: timedelta, weights: Sequence[Decimal]) -> list[timedelta]:
    """A time by weight, in microseconds; the parts add up to it."""
    parts = money.split(money.seconds(time), weights, Decimal("0.000001"))
    return [timedelta(microseconds=int(part * 1_000_000)) for part in parts]


def _tokens(tokens: Tokens, weights: Sequence[Decimal]) -> list[Tokens]:
    """Whole tokens by weight, which add up; the unknown stays unknown."""
    found = [Tokens() for _ in weights]
    for name in COUNTERS:
        value: int | None = getattr(tokens, name)
        if value is None:
            continue
        whole = Decimal(value)
        raw = [whole * weight / sum(weights, money.ZERO) for weight in weights]
        counts = money.rounded_parts(raw, whole, Decimal(1))
        found = [replace(one, **{name: int(count)}) for one, count in zip(found, counts, strict=True)]
    return found
