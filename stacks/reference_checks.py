"""Checks of references: a name that settings use must exist in the same file or in the catalogue, exactly once."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import Problem

GROUP_NAME_LIMIT: Final = 63
"""Maximum length of a name on Google Cloud."""
_SUFFIX: Final = 8
"""Length of the suffix that Pulumi appends to a name: a dash and seven digits."""


def check(settings: Settings, root: str) -> Iterator[Problem]:
    """Check the references of the environment: zones, budgets, allowed machine types, prices."""
    yield from _duplicates(f"{root}.zones", settings.zones)
    yield from _budgets(settings, root)
    for index, spend in enumerate(settings.commitments.spends):
        for name in spend.rates:
            yield from _unknown_machine_type(f"{root}.commitments.spends.{index}.rates.{name}", settings.cloud, name)
    for index, name in enumerate(settings.policies.machine_types or ()):
        yield from _unknown_machine_type(f"{root}.policies.machine_types.{index}", settings.cloud, name)
    for index, price in enumerate(settings.prices):
        path = f"{root}.prices.{index}"
        if price.sku.partition(":")[0] in {*Cloud} - {settings.cloud}:
            remedy = f"write a sku of {settings.cloud}, or remove the price"
            yield Problem(path=f"{path}.sku", wrong="is a sku of another cloud", value=price.sku, remedy=remedy)
        if not _is_day(price.as_of):
            remedy = "write the day of the price, for example 2026-11-21"
            yield Problem(path=f"{path}.as_of", wrong="is not a date", value=price.as_of, remedy=remedy)


def _budgets(settings: Settings, root: str) -> Iterator[Problem]:
    seen: set[tuple[str, str]] = set()
    pools = {pool.name for pool in settings.pools}
    for index, budget in enumerate(settings.budgets):
        # a budget's team may be a team of clients, which no settings list
        if budget.pool is not None and budget.pool not in pools:
            yield Problem(
                path=f"{root}.budgets.{index}.pool",
                wrong=f"is not one of the pools {', '.join(sorted(pools))}",
                value=budget.pool,
                remedy="write one of them",
            )
        if budget.of in seen:
            wrong, remedy = "is a second budget for the same pool or team", "remove one of them"
            yield Problem(path=f"{root}.budgets.{index}", wrong=wrong, value=budget.of[1], remedy=remedy)
        seen.add(budget.of)


def check_pool(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Check the references of one pool: no duplicate machine types, and a pool name short enough for its groups'
    names.
    """
    capacity = pool.capacity
    for kind, part in (("spot", capacity.spot), ("on_demand", capacity.on_demand)):
        if part is not None:
            yield from _duplicates(f"{path}.capacity.{kind}.machine_types", part.machine_types)
    if settings.cloud is Cloud.GCP:
        yield from _group_names(pool, path)


def _group_names(pool: PoolSettings, path: str) -> Iterator[Problem]:
    capacity = pool.capacity
    names = [f"{pool.name}-reserved-{r.zone}-{r.machine_type}" for r in capacity.reserved]
    names += [f"{pool.name}-spot-{zone}" for zone in (capacity.spot.zones if capacity.spot else ())]
    longest = max(names, key=len, default="")
    over = len(longest) + _SUFFIX - GROUP_NAME_LIMIT
    if over > 0:
        yield Problem(
            path=f"{path}.name",
            wrong=f"is too long: the group name {longest} exceeds Google Cloud's limit by {over} characters",
            value=pool.name,
            remedy=f"shorten it to {len(pool.name) - over} characters"
            if over < len(pool.name)
            else "reserve in another zone",
        )


def _duplicates(path: str, names: Sequence[str]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(path=f"{path}.{index}", wrong="is named twice", value=name, remedy="name it once")


def _unknown_machine_type(path: str, cloud: Cloud, name: str) -> Iterator[Problem]:
    try:
        catalogue.machine(cloud, name)
    except catalogue.UnknownMachineError as error:
        wrong, _, hint = str(error.args[0]).partition(": ")
        yield Problem(path=path, wrong=wrong, value=name, remedy=hint or "choose a machine type of this cloud")


def _is_day(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
