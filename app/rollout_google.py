"""`gpufleet rollout` on Google Cloud: runs its own loop, and pauses the pool's watchdogs meanwhile."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from app.ledgers import ledger_name
from app.wiring import agents_of, open_engine
from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.clouds.gcp.rollouts import GoogleRollouts
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.ledger import operations
from gpufleet.settings.document import FleetDocument, Pool

OWNER: Final = "rollout"


def rollouts_of(document: FleetDocument, pool: Pool, announce: Callable[[str], None]) -> GoogleRollouts:
    """The rollout of a pool. Makes no call yet."""
    calls = GoogleCalls(document.account)
    return GoogleRollouts(
        groups=GoogleGroups(calls, document),
        inventory=GoogleInventory(calls, document.region, document.environment, document.owned_groups()),
        agents=agents_of(document, announce),
        pool=pool,
        announce=announce,
    )


@contextmanager
def paused(document: FleetDocument, pool: Pool, limit: timedelta) -> Generator[None]:
    """Pause the pool's watchdogs, as `gpufleet status` shows. If the process dies, the pause expires at its limit."""
    engine, fleet = open_engine(document), ledger_name(document)
    now = datetime.now(UTC)
    brake = Brake(
        kind=BrakeKind.PAUSE,
        scope=pool.name,
        owner=OWNER,
        reason="a newer template is rolled out",
        since=now,
        until=now + limit,
    )
    operations.set_brake(engine, fleet, brake)
    try:
        yield
    finally:
        release(document, pool)


def release(document: FleetDocument, pool: Pool) -> int:
    """Release the rollout's pause, unless people paused the pool, too. Returns the number of released pauses."""
    engine, fleet, now = open_engine(document), ledger_name(document), datetime.now(UTC)
    held = [b for b in operations.brakes(engine, fleet, now) if b.kind == BrakeKind.PAUSE and b.scope == pool.name]
    if any(brake.owner != OWNER for brake in held):
        return 0
    return operations.release_brakes(engine, fleet, BrakeKind.PAUSE, pool.name, (OWNER, now))
