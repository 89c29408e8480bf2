"""Sums of charges and tokens, and their ratios. Pure.

A ratio is always a sum over a sum. Without tokens there is no USD per million tokens; what was spent is shown.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gpufleet.costs.allocation import Charge, ChargeKind, UseState
from gpufleet.costs.energy import Energy
from gpufleet.costs.uncertainty import UnknownSpan
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType
from gpufleet.ledger.counters import Tokens

OUTPUT_WEIGHT: Final = Decimal(4)
"""The assumed price ratio of an output token to an input token, where engines do not report prefill and decode time.
4.0 is the default of Google's GKE inference recommender; OpenCost takes 2.5."""


class Method(StrEnum):
    """How a cost was split into its input and its output part."""

    TIME = "prefill and decode seconds of the engines"
    WEIGHT = "output tokens weighted 4:1"
    NONE = "no tokens"


class Basis(StrEnum):
    """Which cost is divided by tokens."""

    ALLOCATION = "allocation"
    """All that was paid for: what a bill shows."""
    USAGE = "usage"
    """What the used time cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """USD per million tokens. None: no tokens of that kind."""

    basis: Basis
    method: Method
    input: Decimal | None
    """Per million input tokens that were computed (without those that a prefix cache answered)."""
    output: Decimal | None
    blended: Decimal | None
    """Per million tokens in (cached ones included) and out."""


@dataclass(slots=True)
class Figure:
    """The cost and the tokens of a part of a fleet in a window. Amounts are in dollar-seconds."""

    amounts: dict[UseState, Decimal] = field(default_factory=lambda: defaultdict[UseState, Decimal](Decimal))
    times: dict[UseState, timedelta] = field(default_factory=lambda: defaultdict[UseState, timedelta](timedelta))
    adjustments: dict[ChargeKind, Decimal] = field(default_factory=lambda: defaultdict[ChargeKind, Decimal](Decimal))
    """Minimum charges and credits, which `amounts` already contain."""
    tokens: Tokens = Tokens()
    """Tokens of the instances in the ledger, whose cost is known."""
    without_cost: Tokens = Tokens()
    """Tokens of instances that are not in the ledger."""
    spot: Decimal = money.ZERO
    """The cost of spot time with a known on-demand price."""
    spot_on_demand: Decimal = money.ZERO
    """The on-demand cost of the same time."""
    spot_uncompared: Decimal = money.ZERO
    """The cost of spot time without a known on-demand price."""
    on_demand: Decimal = money.ZERO
    unpriced: int = 0
    """Charges without a price. If there are any, the amounts are lower bounds."""
    too_much: Decimal = money.ZERO
    """The largest amount by which `allocation` may be too high: see gpufleet.costs.uncertainty."""
    too_little: Decimal = money.ZERO
    """The largest amount by which `allocation` may be too low, as far as prices are known."""
    unbounded: int = 0
    """Spans of unknown cost without a price."""
    instances: set[str] = field(default_factory=set[str])
    energy: Energy = Energy()

    def add(self, charge: Charge) -> None:
        """Add a charge."""
        if charge.kind is ChargeKind.TIME:
            self.instances.add(charge.resource)
        if charge.kind in (ChargeKind.TIME, ChargeKind.RESERVATION, ChargeKind.SHARED, ChargeKind.COMMITTED):
            self.times[charge.state] += charge.duration
        if charge.amount is None:
            self.unpriced += 1
            return
        self.amounts[charge.state] = money.EXACT.add(self.amounts[charge.state], charge.amount)
        if charge.kind in (ChargeKind.MINIMUM, ChargeKind.PREEMPTED):
            self.adjustments[charge.kind] = money.EXACT.add(self.adjustments[charge.kind], charge.amount)
        if charge.capacity_type is CapacityType.ON_DEMAND and charge.kind is not ChargeKind.SHARED:
            self.on_demand = money.EXACT.add(self.on_demand, charge.amount)
        if charge.capacity_type is not CapacityType.SPOT:
            return
        if charge.on_demand is None:
            self.spot_uncompared = money.EXACT.add(self.spot_uncompared, charge.amount)
        else:
            self.spot = money.EXACT.add(self.spot, charge.amount)
            self.spot_on_demand = money.EXACT.add(self.spot_on_demand, charge.on_demand)

    def add_unknown(self, span: UnknownSpan) -> None:
        """Add the bounds of an unknown cost."""
        self.too_much = money.EXACT.add(self.too_much, money.EXACT.subtract(span.charged, span.least))
        if span.most is None:
            self.unbounded += 1
        else:
            self.too_little = money.EXACT.add(self.too_little, money.EXACT.subtract(span.most, span.charged))

    def include(self, part: "Figure") -> None:
        """Add another figure."""
        for state, amount in part.amounts.items():
            self.amounts[state] = money.EXACT.add(self.amounts[state], amount)
        for state, time in part.times.items():
            self.times[state] += time
        for kind, amount in part.adjustments.items():
            self.adjustments[kind] = money.EXACT.add(self.adjustments[kind], amount)
        self.tokens += part.tokens
        self.without_cost += part.without_cost
        self.spot = money.EXACT.add(self.spot, part.spot)
        self.spot_on_demand = money.EXACT.add(self.spot_on_demand, part.spot_on_demand)
        self.spot_uncompared = money.EXACT.add(self.spot_uncompared, part.spot_uncompared)
        self.on_demand = money.EXACT.add(self.on_demand, part.on_demand)
        self.unpriced += part.unpriced
        self.too_much = money.EXACT.add(self.too_much, part.too_much)
        self.too_little = money.EXACT.add(self.too_little, part.too_little)
        self.unbounded += part.unbounded
        self.instances |= part.instances
        self.energy += part.energy

    @property
    def served(self) -> Tokens:
        """All tokens, also those without a known cost."""
        return self.tokens + self.without_cost

    @property
    def allocation(self) -> Decimal:
        """Everything: used + idle + starting + unused + shared."""
        return money.total(self.amounts.values())

    @property
    def least(self) -> Decimal:
        """The lower bound of `allocation`."""
        return money.EXACT.subtract(self.allocation, self.too_much)

    @property
    def most(self) -> Decimal | None:
        """The upper bound of `allocation`, of the resources that the ledger knows; None: a price is unknown."""
        if self.unpriced or self.unbounded:
            return None
        return money.EXACT.add(self.allocation, self.too_little)

    @property
    def used(self) -> Decimal:
        """Used time, including unmeasured time: only time that is known to be idle counts as idle."""
        return money.total((self.amounts[UseState.USED], self.amounts[UseState.UNMEASURED]))

    @property
    def spot_saving(self) -> Decimal:
        """What spot saved against on-demand, as far as both prices are known."""
        return money.EXACT.subtract(self.spot_on_demand, self.spot)

    @property
    def coverage(self) -> float | None:
        """Share of the serving time that was measured; None where nothing could have been."""
        known = self.times[UseState.USED] + self.times[UseState.IDLE]
        whole = known + self.times[UseState.UNMEASURED]
        return known / whole if whole else None

    def unit_costs(self, basis: Basis = Basis.ALLOCATION) -> UnitCosts:
        """USD per million tokens, of the instances in the ledger."""
        amount = self.allocation if basis is Basis.ALLOCATION else self.used
        tokens = self.tokens
        if tokens.prompt is None or tokens.generation is None or not tokens.total:
            return UnitCosts(basis=basis, method=Method.NONE, input=None, output=None, blended=None)
        computed = computed_input(tokens.prompt, tokens.cached)
        method, into, out = _shares(tokens, computed)
        if not into and not out:  # all of it from a prefix cache, no output yet: nothing to split by
            into = Decimal(1)
        for_input, for_output = money.split(amount, (into, out)) if amount >= 0 else (amount, money.ZERO)
        return UnitCosts(
            basis=basis,
            method=method,
            input=money.usd_per_million(for_input, computed),
            output=money.usd_per_million(for_output, tokens.generation),
            blended=money.usd_per_million(amount, tokens.prompt + tokens.generation),
        )


def computed_input(prompt: int, cached: int | None) -> int:
    """Input tokens that no prefix cache answered. At a window's edge one counter may be read without the other."""
    return max(prompt - (cached or 0), 0)


def _shares(tokens: Tokens, computed: int) -> tuple[Method, Decimal, Decimal]:
    if tokens.prefill_ms and tokens.decode_ms:
        return Method.TIME, Decimal(tokens.prefill_ms), Decimal(tokens.decode_ms)
    return Method.WEIGHT, Decimal(computed), OUTPUT_WEIGHT * (tokens.generation or 0)
