"""What the idle watchdog says to people."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from gpufleet.domain.decisions import Decision
from gpufleet.domain.model import Instance
from gpufleet.domain.tags import IDLE_SINCE, KEEP_UNTIL, POOL, ROLE, ROUTER


def marked(instance: Instance, decision: Decision, ends_at: datetime, likely_at: datetime) -> str:
    """Why, what it costs, what will happen when, how to keep it, and what ending it means."""
    # the cold start may be measured anew before then, the promise stays
    later = f" With its pool's cold start that is about {likely_at:%H:%M} UTC." if likely_at > ends_at else ""
    return "\n".join(
        (
            f"{instance.id} of pool {instance.pool} ({instance.capacity_type}, {instance.machine_type}, "
            f"{instance.zone}) is idle: {decision.detail or decision.reason.sentence}.",
            f"It costs {money(decision.usd_per_hour)}.",
            f"It will be drained and ended after {ends_at:%H:%M:%S} UTC if it is still idle then.{later}",
            f"To keep it: `gpufleet keep {instance.id} --for 4h --reason WHY`, or set its tag {KEEP_UNTIL} "
            f"(a time as 20261121t0215z), or remove its tag {IDLE_SINCE}.",
            "Ending it loses its local copy of the model; a new one starts cold, and may find no capacity.",
        )
    )


def unmarked(decision: Decision) -> str:
    """Why it stays."""
    because = f" ({decision.detail})" if decision.detail else ""
    return f"{decision.resource} of pool {decision.pool} stays: {decision.reason.sentence}{because}."


def ended(decision: Decision, target: int | None) -> str:
    """What was ended, and what that saves."""
    after = "" if target is None else f"; the pool's target is now {target}"
    return (
        f"{decision.resource} of pool {decision.pool} was drained and ended: {decision.reason.sentence}. "
        f"That saves {money(decision.usd_per_hour)}{after}."
    )


def unheard(decision: Decision, silent: Sequence[str]) -> str:
    """Why it is not ended, what that costs, and what to mend."""
    return (
        f"{decision.resource} of pool {decision.pool} says that it is drained, but its {' and its '.join(silent)} "
        f"told Prometheus nothing since: nobody else says that it rests, so it is not ended. It serves nothing and "
        f"costs {money(decision.usd_per_hour)}. Each pass looks again; look whether Prometheus reaches it."
    )


def claims(instance: Instance) -> str:
    """Who carries a pool's tags and is none of its members, what it does not get, and what to do."""
    there = "no group" if instance.group is None else f"{instance.group}, a group that the fleet document lacks"
    nowhere = "" if instance.environment is not None else "without an environment's tag "
    return (
        f"{instance.id} ({instance.machine_type}, {instance.zone}) carries the tag {POOL} = {instance.claimed_pool} "
        f"{nowhere}and is in {there}: it gets no requests, no key and no orders. If it is not yours, find who "
        f"started it. End it, or remove that tag; what a `pulumi up` left over, another `pulumi up` removes."
    )


def claims_router(instance: Instance) -> str:
    """Who carries the tag of a router and is none that the program made."""
    return (
        f"{instance.id} ({instance.machine_type}, {instance.zone}) carries the tag {ROLE} = {ROUTER} and is no "
        f"router that the fleet document names: it is not scraped, and nothing counts it. If it is not yours, find "
        f"who started it. End it, or remove that tag; after an interrupted `pulumi up`, another names new routers."
    )


def failed(decision: Decision, error: str) -> str:
    """What could not be done."""
    return f"{decision.resource} of pool {decision.pool} could not be ended: {error}"


def money(usd_per_hour: Decimal | None) -> str:
    """`0.62 USD/h`, or that nobody knows."""
    return "an unknown price" if usd_per_hour is None else f"{usd_per_hour.normalize():f} USD/h"
