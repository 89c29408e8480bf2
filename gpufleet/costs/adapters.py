"""The cost of a pool with LoRA adapters by the model name of the requests: split as by team. Pure.

The engines count the tokens of all adapters together, so the router's records are the source. What they lack is a
part of its own, and no adapter is charged for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.figures import OUTPUT_WEIGHT, Figure
from gpufleet.costs.teams import Part, UseShare, shares
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.teams import TeamUse, Uses, by_model

NOT_RECORDED: Final = "(not recorded by the router)"


def adapter_shares(
    pools: Mapping[str, Figure], uses: Uses, declared: Iterable[DeclaredCosts]
) -> tuple[list[UseShare], list[str]]:
    """The parts of all pools that declare an adapter at any time of the window, and notes for people."""
    adapters = dict[str, set[str]]()
    for one in declared:
        for pool, names in one.adapters.items():
            adapters.setdefault(pool, set()).update(names)
    found: list[UseShare] = []
    notes: list[str] = []
    for pool in sorted(adapters.keys() & pools.keys()):
        of_pool = by_model(uses, pool)
        if not any(use.replica_ms for use in of_pool.values()):
            notes.append(f"pool {pool}: the router recorded no requests; the cost of each adapter is unknown")
        found += split_by_adapter(pool, pools[pool], of_pool, adapters[pool])
    return found, notes


def split_by_adapter(
    pool: str, whole: Figure, uses: Mapping[str, TeamUse], adapters: Collection[str]
) -> list[UseShare]:
    """A pool's figure by the model name of the requests: its model, each adapter, and what was not recorded.

    Adapters without requests have parts of 0. If each recorded answer reported its tokens and the engines counted
    more, the difference is the part that was not recorded: its engine seconds per token are those of the others.
    Tokens are estimated where those of the engines are unknown, or fewer than the router recorded.
    """
    names = sorted({name for name, use in uses.items() if name and use.replica_ms > 0} | set(adapters))
    parts = [(n, Part.ADAPTER if n in adapters else Part.MODEL, uses.get(n, TeamUse())) for n in names]
    unnamed = uses.get("", TeamUse())
    every = [*(use for *_, use in parts), unnamed]
    recorded, missing = _recorded_and_missing(whole.tokens, every)
    parts.append((NOT_RECORDED, Part.NOT_RECORDED, _more(unnamed, missing)))
    # whole numbers in proportion to engine seconds: those of the missing part are seconds * missing / recorded
    seconds, scale = sum(use.replica_ms for *_, use in parts), recorded if _weighted(missing) else 1
    weights = [Decimal(use.replica_ms * scale) for *_, use in parts]
    weights[-1] += seconds * _weighted(missing)
    if not any(weights):
        weights[-1] = Decimal(1)
    if not weights[-1]:
        del parts[-1], weights[-1]
    return shares(pool, whole, parts, weights, consistent=_consistent(whole.tokens, every))


def _consistent(counted: Tokens, uses: Sequence[TeamUse]) -> bool:
    """Whether the engines counted all tokens that the router recorded."""
    into, out = sum(use.tokens_in for use in uses), sum(use.tokens_out for use in uses)
    return (
        counted.prompt is not None
        and counted.generation is not None
        and into <= counted.prompt
        and out <= counted.generation
    )


def _recorded_and_missing(counted: Tokens, uses: Sequence[TeamUse]) -> tuple[int, Tokens]:
    """The weighted sum of the recorded tokens, and the tokens that the engines counted in addition."""
    into, out = sum(use.tokens_in for use in uses), sum(use.tokens_out for use in uses)
    missing = Tokens(prompt=0, generation=0)
    if counted.prompt is not None and counted.generation is not None and not any(use.unmetered for use in uses):
        missing = Tokens(prompt=max(counted.prompt - into, 0), generation=max(counted.generation - out, 0))
    return _weighted(Tokens(prompt=into, generation=out)), missing


def _more(use: TeamUse, tokens: Tokens) -> TeamUse:
    return replace(
        use,
        tokens_in=use.tokens_in + (tokens.prompt or 0),
        tokens_out=use.tokens_out + (tokens.generation or 0),
    )


def _weighted(tokens: Tokens) -> int:
    """Tokens with the weights of `OUTPUT_WEIGHT`."""
    return (tokens.prompt or 0) + int(OUTPUT_WEIGHT) * (tokens.generation or 0)
