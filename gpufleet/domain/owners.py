"""Whose an instance is."""

from collections.abc import Collection, Mapping

from gpufleet.domain.model import Instance


def owner_of(groups: Mapping[str, Collection[str]], instance: Instance) -> str | None:
    """The pool of a fleet that an instance is of; None: none. `groups`: the names of each pool's groups.

    A pool's tag alone makes nobody its own whose group the pool has not: a `pulumi up` that was killed leaves such
    groups.
    """
    if instance.pool is None or (own := groups.get(instance.pool)) is None:
        return None
    return instance.pool if instance.group is None or instance.group in own else None
