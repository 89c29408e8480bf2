"""Codes where release 0.1 stored sentences, and whether a pass of the cost watchdog read prices.

A sentence that is not in these maps stays as it is: it is read as an unknown code.
"""

import re
from collections.abc import Mapping
from typing import Any

from alembic import op
from sqlalchemy import text

revision = "0006"
down_revision = "0005"

REASONS = {
    "requests in flight": "serving",
    "tokens were served in the window": "tokens_moved",
    "GPU active": "gpu_active",
    "GPU active without work": "gpu_active_without_work",
    "metrics missing": "metrics_missing",
    "metrics stale": "metrics_stale",
    "metrics implausible": "metrics_implausible",
    "never reachable since boot": "never_reachable",
    "younger than its warm-up": "warming_up",
    "loading its model": "loading",
    "draining already": "draining",
    "kept by a person": "kept_by_people",
    "watchdogs paused": "paused",
    "prepaid capacity costs the same when stopped": "prepaid",
    "pool is at its floor": "pool_floor",
    "most changes of this run reached": "run_budget",
    "most changes of this hour reached": "hour_budget",
    "most changes of this day reached": "day_budget",
    "marked, grace not over": "marked_waiting",
    "in a rollout": "in_rollout",
    "outside every pool": "outside_pools",
    "its rule only marks": "mark_only",
    "it cannot be stopped without harm": "not_stoppable",
    "not running": "not_running",
    "policy changed, its dry run was not seen": "policy_unseen",
    "no such watchdog in its pool": "no_watchdog",
    "not ready when due": "not_ready",
    "as wanted": "as_wanted",
    "still idle after its grace": "still_idle",
    "work is back": "work_is_back",
    "reserved capacity is paid for": "reserved_in_full",
    "its prepaid time has not begun": "term_not_begun",
    "its prepaid time ends": "term_ends",
    "its stated time to run ends": "run_ends",
    "spot wanted": "spot_wanted",
    "a safer zone": "safer_zone",
    "spot at or above its ceiling": "spot_too_dear",
    "zone backing off": "zone_backing_off",
    "no spot to be had": "no_spot",
    "on-demand stands in for missing spot": "fallback",
    "spot is back, hold not over": "holding_fallback",
    "spot is back": "spot_is_back",
    "preempted, drained": "preempted",
    "more than the target needs": "surplus",
    "quota reached": "quota",
    "boots keep failing": "boots_failing",
    "boot failed": "boot_failed",
    "load above its limit": "load_high",
    "load expected from earlier days": "load_expected",
    "latency above its objective": "objective_missed",
    "the rest can carry the load": "load_low",
    "the rest could not carry the load": "load_needs_all",
    "requests wait for a first replica": "held_requests",
}
KINDS = {"no longer true": "no_longer_true"}


CODED = {
    "decisions": {"reason": REASONS},
    "decision_heads": {"reason": REASONS},
    "outcomes": {"reason": REASONS, "kind": KINDS},
}
"""Table and column to codes by sentence. An intent is JSON with a `reason`."""


def upgrade() -> None:
    connection = op.get_bind()
    for table, columns in CODED.items():
        for column, codes in columns.items():
            connection.execute(text(_update(table, column, codes)))
    for intent in connection.execute(text("select fleet, watchdog, resource, decision from intents")).all():
        key = "fleet = :fleet and watchdog = :watchdog and resource = :resource"
        row = coded("intents", {**intent._mapping})  # pyright: ignore[reportPrivateUsage]
        connection.execute(text(f"update intents set decision = :decision where {key}"), row)
    op.execute("alter table passes add column priced integer")
    op.execute("update passes set priced = case when notes like '%prices:%' then 0 else 1 end")


def coded(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as release 0.1 wrote it, with codes."""
    codes: dict[str, Any] = {
        name: known.get(str(row.get(name)), row.get(name)) for name, known in CODED.get(table, {}).items()
    }
    if table == "intents" and isinstance(row.get("decision"), str):
        reason = r'(?<="reason": ")[^"]+'
        codes["decision"] = re.sub(reason, lambda found: REASONS.get(found[0], found[0]), row["decision"])
    return {**row, **codes}


def _update(table: str, column: str, codes: dict[str, str]) -> str:
    cases = " ".join(f"when '{sentence}' then '{code}'" for sentence, code in codes.items())
    known = ", ".join(f"'{sentence}'" for sentence in codes)
    return f"update {table} set {column} = case {column} {cases} end where {column} in ({known})"
