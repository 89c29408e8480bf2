"""The floor of a pool where one of its replicas must leave before another can come."""


def objection(pool: str, floor: int, ready: int) -> str | None:
    """Why none may go before its replacement comes, and what to do; None: the others carry the floor."""
    if ready - 1 >= floor:
        return None
    return (
        f"{ready} replicas are ready and one must go before its replacement comes, but the floor of {pool} is"
        f" {floor}; {raise_first(pool, floor)}"
    )


def raise_first(pool: str, floor: int) -> str:
    """The way out, with its command."""
    return f"raise the pool first: gpufleet target {pool} {floor + 1} --reason rollout"
