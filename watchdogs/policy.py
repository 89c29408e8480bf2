"""What a policy is called, and whether it may act: a changed one waits until a dry run of it was seen."""

import hashlib
import json
from dataclasses import fields, is_dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

from gpufleet.domain.policies import AS_BEFORE, IdlePolicy, OrphanPolicy, ScalePolicy, SpotPolicy

Policy = IdlePolicy | SpotPolicy | ScalePolicy | OrphanPolicy
_OF_OLD: Final = object()
"""Equals no value: a setting that was always there is always part of the name."""


def digest(policy: Policy, *limits: int) -> str:
    """A short name of the policy's values and of the pool's limits that it works within.

    A setting that came with an upgrade has no part in it at the value that means what was before (`AS_BEFORE`): what
    people have seen stays seen.
    """
    canonical = json.dumps([policy, limits], sort_keys=True, default=_plain, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        told = {each: getattr(value, each.name) for each in fields(value)}
        return {each.name: said for each, said in told.items() if said != each.metadata.get(AS_BEFORE, _OF_OLD)}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value.normalize())
    raise TypeError(f"a policy holds a {type(value).__name__}, which has no canonical form")
