"""Messages of the idle watchdog."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from gpufleet.domain.decisions import Decision
from gpufleet.domain.model import Instance
from gpufleet.domain.tags import IDLE_SINCE, KEEP_UNTIL, POOL, ROLE, ROUTER


def marked(instance: Instance, decision: Decision, ends_at: datetime, likely_at: datetime) -> str:
    """Why an instance was marked, its cost, what happens when, how to keep it, and what an end loses."""
    # the cold start may be measured again before then: the earliest end stays
    later = f" Including the pool's cold start, expect about {likely_at:%H:%M} UTC." if likely_at > ends_at else ""
    return "\n".join(
        (
            f"{instance.id} of pool {instance.pool} ({instance.capacity_type}, {instance.machine_type}, "
            f"{instance.zone}) is idle: {decision.detail or decision.reason.sentence}.",
            f"It costs {money(decision.usd_per_hour)}.",
            f"It will be drained and ended after {ends_at:%H:%M:%S} UTC if it is still idle then.{later}",
            f"To keep it: `gpufleet keep {instance.id} --for 4h --reason WHY`, or set its tag {KEEP_UNTIL} "
            f"(a time such as 20261121t0215z), or remove its tag {IDLE_SINCE}.",
            "Ending it loses its local copy of the model. A replacement starts cold and may not get capacity.",
        )
    )


def unmarked(decision: Decision) -> str:
    """Why an instance is kept again."""
    because = f" ({decision.detail})" if decision.detail else ""
    return f"{decision.resource} of pool {decision.pool} is kept: {decision.reason.sentence}{because}."


def ended(decision: Decision, target: int | None) -> str:
    """What was ended, and what that saves."""
    after = "" if target is None else f"; the pool's target is now {target}"
    return (
        f"{decision.resource} of pool {decision.pool} was drained and ended: {decision.reason.sentence}. "
        f"That saves {money(decision.usd_per_hour)}{after}."
    )


def unconfirmed(decision: Decision, silent: Sequence[str]) -> str:
    """Why a drained instance is not ended, what that costs, and what to check."""
    return (
        f"{decision.resource} of pool {decision.pool} reports that it is drained, but Prometheus has not scraped "
        f"its {' and its '.join(silent)} since then. Without a scrape it is not ended. It serves nothing and costs "
        f"{money(decision.usd_per_hour)}. Each pass checks again; check whether Prometheus can reach it."
    )


def claims(instance: Instance) -> str:
    """An instance that has the tags of a pool but is not a member of it: the effects, and what to do."""
    there = "no group" if instance.group is None else f"{instance.group}, a group that the fleet document lacks"
    nowhere = "" if instance.environment is not None else "without an environment's tag "
    return (
        f"{instance.id} ({instance.machine_type}, {instance.zone}) has the tag {POOL} = {instance.claimed_pool} "
        f"{nowhere}and is in {there}: it gets no requests, no key and no orders. If it is not yours, find who "
        f"started it. End it, or remove that tag. If an interrupted `pulumi up` left it, run `pulumi up` again."
    )


def claims_router(instance: Instance) -> str:
    """An instance that has the tag of a router but is not a router of the fleet document."""
    return (
        f"{instance.id} ({instance.machine_type}, {instance.zone}) has the tag {ROLE} = {ROUTER} but is not a "
        f"router of the fleet document: it is not scraped and not counted. If it is not yours, find "
        f"who started it. End it, or remove that tag. If an interrupted `pulumi up` left it, run `pulumi up` again."
    )


def failed(decision: Decision, error: str) -> str:
    """That an end failed, and why."""
    return f"{decision.resource} of pool {decision.pool} could not be ended: {error}"


def money(usd_per_hour: Decimal | None) -> str:
    """`0.62 USD/h`, or that the amount is unknown."""
    return "an unknown amount (no price)" if usd_per_hour is None else f"{usd_per_hour.normalize():f} USD/h"
