"""Remaining budgets of a pass: of each pool (or rule), and of the fleet. Pure."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final

from gpufleet.domain.decisions import ChangeBudget, Reason
from gpufleet.domain.policies import IdlePolicy, OrphanPolicy, SpotPolicy

HOUR: Final = timedelta(hours=1)
"""The period of `per_hour`."""


def pool_budget(
    policy: IdlePolicy | SpotPolicy | OrphanPolicy, used_this_hour: int = 0, left_today: int | None = None
) -> ChangeBudget:
    """The budget of a pool, by its policy."""
    return ChangeBudget(
        per_run=policy.max_stops_per_run,
        per_hour=policy.max_stops_per_hour,
        used_this_hour=used_this_hour,
        left_today=left_today,
    )


def fleet_budget(
    parts: Collection[ChangeBudget], instances: int, used_this_hour: int, left_today: int | None = None
) -> ChangeBudget:
    """The budget over all pools: 1/20 of the fleet per run, 1/5 per hour, and at least that of the largest pool."""
    return ChangeBudget(
        per_run=max((instances // 20, *(part.per_run for part in parts))),
        per_hour=max((instances // 5, *(part.per_hour for part in parts))),
        used_this_hour=used_this_hour,
        left_today=left_today,
    )


class RemainingBudget:
    """The remaining budget while a plan is made."""

    def __init__(self, whole: ChangeBudget, parts: Mapping[str, ChangeBudget]) -> None:
        self._whole = _Left(whole)
        self._parts = {name: _Left(part) for name, part in parts.items()}

    def objection(self, part: str, *, runs: bool = True) -> Reason | None:
        """Why nothing more of a part may be ended; None: its budget allows one more.

        Of several reasons, the one that lasts longest. `runs`: the budget of this run applies, too.
        """
        both = (self._parts[part], self._whole)
        if any(left.today is not None and left.today <= 0 for left in both):
            return Reason.DAY_BUDGET
        if any(left.hour <= 0 for left in both):
            return Reason.HOUR_BUDGET
        return Reason.RUN_BUDGET if runs and any(left.run <= 0 for left in both) else None

    def take(self, part: str, *, runs: bool = True) -> None:
        """Use one of the budget of a part. `runs`: it counts in this run, too."""
        for left in (self._parts[part], self._whole):
            left.take(runs=runs)

    def take_run(self, part: str) -> bool:
        """Use one of the budget of this run only. False: nothing remains."""
        both = (self._parts[part], self._whole)
        if any(left.run <= 0 for left in both):
            return False
        for left in both:
            left.run -= 1
        return True


class _Left:
    """What remains of one budget."""

    def __init__(self, budget: ChangeBudget) -> None:
        self.run = budget.per_run
        self.hour = budget.per_hour - budget.used_this_hour
        self.today = budget.left_today

    def take(self, *, runs: bool) -> None:
        self.run -= runs
        self.hour -= 1
        self.today = None if self.today is None else self.today - 1
