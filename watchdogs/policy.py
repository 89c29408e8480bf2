"""What a policy is called, and whether it may act: a changed one waits until a dry run of it was seen."""

import hashlib
import json
from dataclasses import asdict
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from fleet.policies import IdlePolicy, OrphanPolicy, ScalePolicy, SpotPolicy

Policy = IdlePolicy | SpotPolicy | ScalePolicy | OrphanPolicy


def digest(policy: Policy, *limits: int) -> str:
    """A short name of the policy's values and of the pool's limits that it works within."""
    canonical = json.dumps([asdict(policy), limits], sort_keys=True, default=_plain, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value.normalize())
    raise TypeError(f"a policy holds a {type(value).__name__}, which has no canonical form")
