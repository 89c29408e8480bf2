"""Digests of policies, and whether a policy may act: a changed one waits until its dry run was seen."""

import hashlib
import json
from dataclasses import fields, is_dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

from gpufleet.domain.policies import AS_BEFORE, IdlePolicy, OrphanPolicy, ScalePolicy, SpotPolicy
from gpufleet.settings.document import FleetDocument, Pool
from watchdogs.idle.decide import WATCHDOG as IDLE
from watchdogs.orphans.decide import WATCHDOG as ORPHANS
from watchdogs.ports import Ports
from watchdogs.scale.decide import WATCHDOG as SCALE
from watchdogs.spot.decide import WATCHDOG as SPOT

Policy = IdlePolicy | SpotPolicy | ScalePolicy | OrphanPolicy
_NO_DEFAULT: Final = object()
"""Equals no value: a setting without AS_BEFORE is always part of the digest."""


def digests(document: FleetDocument, watchdog: str) -> dict[str, str]:
    """By pool (of orphans: by rule) the digest of its policy; absent: it has no such watchdog."""
    if watchdog == ORPHANS:
        return {rule.name: digest(rule) for rule in document.orphans}
    found = {pool.name: _digest_of(pool, watchdog) for pool in document.pools}
    return {name: known for name, known in found.items() if known is not None}


def see_all(ports: Ports, document: FleetDocument, watchdog: str) -> None:
    """Record that a dry run of all policies was printed: later passes may act by them."""
    now = ports.clock.now()
    for name, known in digests(document, watchdog).items():
        ports.ledger.see_policy(watchdog, name, known, "dry run", now)


def _digest_of(pool: Pool, watchdog: str) -> str | None:
    entries = pool.watchdogs
    if watchdog == IDLE and entries.idle is not None:
        return digest(entries.idle, pool.min)
    if watchdog == SPOT and entries.spot is not None:
        return digest(entries.spot, pool.min, pool.max, pool.spare)
    if watchdog == SCALE and entries.scale is not None:
        return digest(entries.scale, pool.min, pool.max)
    return None


def digest(policy: Policy, *limits: int) -> str:
    """A short name of the policy's values and of the pool's limits that it works within.

    A setting that came with an upgrade has no part in it at the value that means what was before (`AS_BEFORE`): what
    people have seen stays seen.
    """
    canonical = json.dumps([policy, limits], sort_keys=True, default=_plain, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        values = {each: getattr(value, each.name) for each in fields(value)}
        return {
            each.name: value for each, value in values.items() if value != each.metadata.get(AS_BEFORE, _NO_DEFAULT)
        }
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value.normalize())
    raise TypeError(f"a policy holds a {type(value).__name__}, which has no canonical form")
