"""The floor of a pool where one of its replicas must leave service first: to be replaced, or to change."""


def objection(pool: str, floor: int, ready: int) -> str | None:
    """Why none may leave, and what to do; None: the others carry the floor."""
    if ready - 1 >= floor:
        return None
    return (
        f"{ready} replicas are ready and one must leave first, but the floor of {pool} is {floor};"
        f" raise the pool first: gpufleet target {pool} {floor + 1} --reason rollout"
    )
