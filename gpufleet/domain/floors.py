"""Checks a pool's floor before one of its replicas leaves service, to be replaced or changed."""


def objection(pool: str, floor: int, ready: int) -> str | None:
    """Return why no replica may leave and what to do; None if the other replicas satisfy the floor."""
    if ready - 1 >= floor:
        return None
    return (
        f"{ready} replicas are ready and one must leave first, but the floor of {pool} is {floor};"
        f" raise the pool first: gpufleet target {pool} {floor + 1} --reason rollout"
    )
