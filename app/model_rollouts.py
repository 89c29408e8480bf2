"""A model's new revision on its way through the pools of a fleet."""

import time
from collections.abc import Callable
from datetime import timedelta

from app.errors import AppError
from gpufleet.settings.document import FleetDocument


def walk(
    model: str, digest: str, document: FleetDocument, limit: timedelta, say: Callable[[str], None]
) -> dict[str, int]:
    """Change every pool of the model, one instance at a time: pools and their instances. `limit`: per instance.

    Raises AppError where it stops.
    """
    # only here: what asks clouds takes a second to import
    from app.wiring import agents_of, inventory_of
    from gpufleet.domain.activity import CloudError
    from serving.revisions import PoolRollout, RolloutError, Walk

    pools = [pool for pool in document.pools if pool.model == f"models/{model}"]
    if not pools:
        say(f"{document.environment}: no pool serves models/{model}, so nothing changes there")
        return {}
    inventory, agents = inventory_of(document), agents_of(document, say)
    changed: dict[str, int] = {}
    for pool in pools:
        change = Walk(
            rollout=PoolRollout(pool=pool.name, floor=pool.min, limit=limit),
            instances=lambda pool=pool: [one for one in inventory.instances() if one.pool == pool.name and one.alive],
            agents=agents,
            say=say,
            clock=time.monotonic,
            sleep=time.sleep,
        )
        try:
            changed[pool.name] = change.run(digest)
        except (RolloutError, CloudError) as error:
            raise AppError(str(error)) from error
        say(f"{pool.name}: {changed[pool.name]} instances changed")
    return changed
