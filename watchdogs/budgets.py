"""What the budgets of a pass still allow: for each pool (or rule) and in all. Pure."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final

from gpufleet.domain.decisions import ChangeBudget, Reason
from gpufleet.domain.policies import IdlePolicy, OrphanPolicy, SpotPolicy

HOUR: Final = timedelta(hours=1)
"""Over which `per_hour` counts."""


def of(
    policy: IdlePolicy | SpotPolicy | OrphanPolicy, used_this_hour: int = 0, left_today: int | None = None
) -> ChangeBudget:
    """What a policy allows its pool."""
    return ChangeBudget(
        per_run=policy.max_stops_per_run,
        per_hour=policy.max_stops_per_hour,
        used_this_hour=used_this_hour,
        left_today=left_today,
    )


def in_all(
    parts: Collection[ChangeBudget], instances: int, used_this_hour: int, left_today: int | None = None
) -> ChangeBudget:
    """Over all pools: a twentieth of the fleet a run, a fifth an hour, and no less than the largest pool has."""
    return ChangeBudget(
        per_run=max((instances // 20, *(part.per_run for part in parts))),
        per_hour=max((instances // 5, *(part.per_hour for part in parts))),
        used_this_hour=used_this_hour,
        left_today=left_today,
    )


class RemainingBudget:
    """What is left while a plan is made."""

    def __init__(self, whole: ChangeBudget, parts: Mapping[str, ChangeBudget]) -> None:
        self._whole = _Left(whole)
        self._parts = {name: _Left(part) for name, part in parts.items()}

    def objection(self, part: str, *, runs: bool = True) -> Reason | None:
        """Why nothing more may go of a part; None: there is room. What lasts longest is said first.

        `runs`: this run's room counts, too.
        """
        both = (self._parts[part], self._whole)
        if any(left.today is not None and left.today <= 0 for left in both):
            return Reason.DAY_BUDGET
        if any(left.hour <= 0 for left in both):
            return Reason.HOUR_BUDGET
        return Reason.RUN_BUDGET if runs and any(left.run <= 0 for left in both) else None

    def take(self, part: str, *, runs: bool = True) -> None:
        """One of a part goes; `runs`: it counts in this run, too."""
        for left in (self._parts[part], self._whole):
            left.take(runs=runs)

    def take_run(self, part: str) -> bool:
        """Take of this run alone; False: nothing is left of it."""
        both = (self._parts[part], self._whole)
        if any(left.run <= 0 for left in both):
            return False
        for left in both:
            left.run -= 1
        return True


class _Left:
    """Of one budget."""

    def __init__(self, budget: ChangeBudget) -> None:
        self.run = budget.per_run
        self.hour = budget.per_hour - budget.used_this_hour
        self.today = budget.left_today

    def take(self, *, runs: bool) -> None:
        self.run -= runs
        self.hour -= 1
        self.today = None if self.today is None else self.today - 1
