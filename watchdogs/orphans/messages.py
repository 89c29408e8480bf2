"""Messages of the orphan watchdog."""

from datetime import datetime

from gpufleet.domain.decisions import Decision
from gpufleet.domain.model import Instance
from gpufleet.domain.policies import OrphanPolicy
from gpufleet.domain.tags import IDLE_SINCE, KEEP_UNTIL
from watchdogs.idle.messages import money
from watchdogs.orphans.view import OWNER_TAGS, display_name


def marked(instance: Instance, rule: OrphanPolicy, decision: Decision, ends_at: datetime, against: str | None) -> str:
    """The owner, why it was marked, its cost, what happens when, and how to keep it."""
    owner = next((instance.tags[key] for key in OWNER_TAGS if instance.tags.get(key)), None)
    name = display_name(instance)
    called = f" ({name})" if name and name != instance.id else ""
    if against is None:
        then = (
            f"It will be stopped after {ends_at:%Y-%m-%d %H:%M} UTC if it is still idle then. A stop keeps its"
            " network disks. Data on local disks is lost (a cache starts cold). A restart may not get capacity."
        )
    else:
        then = f"Nothing will be stopped: {against}."
    return "\n".join(
        (
            f"{instance.id}{called} belongs to no pool and is idle: {decision.detail}.",
            f"{instance.machine_type}, {instance.capacity_type}, {instance.zone}; owner: {owner or 'unknown'};"
            f" matched by rule {rule.name}. It costs {money(decision.usd_per_hour)}.",
            then,
            f"To keep it: `gpufleet keep {instance.id} --for 24h --reason WHY`, or set its tag {KEEP_UNTIL}"
            f" (a time such as 20261121t0215z), or remove its tag {IDLE_SINCE}.",
        )
    )


def unmarked(decision: Decision) -> str:
    """Why an instance is kept again."""
    reason = decision.reason.sentence
    return f"{decision.resource} (in no pool, rule {decision.pool}) is kept: {reason}; {decision.detail}."


def stopped(decision: Decision) -> str:
    """What was stopped, and what that saves."""
    return (
        f"{decision.resource} (in no pool, rule {decision.pool}) was stopped: {decision.reason.sentence}. That saves"
        f" {money(decision.usd_per_hour)}; its disks still cost money. A restart may not get capacity."
    )


def failed(decision: Decision, error: str) -> str:
    """That a stop failed, and why."""
    return f"{decision.resource} (in no pool, rule {decision.pool}) could not be stopped: {error}"
