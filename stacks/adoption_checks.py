"""Checks of pools that adopt existing groups (`adopt`)."""

from collections.abc import Iterator

from components.aws import group_shape
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import Problem


def check(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Yield an error for each adopted group that the pool does not have, or that two groups adopt."""
    if not pool.adopt:
        return
    if settings.cloud is not Cloud.AWS:
        yield Problem(
            path=f"{path}.adopt",
            wrong="is only for AWS",
            value=pool.adopt,
            remedy="remove it; managed instance groups of Google Cloud cannot be adopted yet",
        )
        return
    spot = pool.capacity.spot
    known = [group_shape.spot_key(zone) for zone in (spot.zones if spot else ())]
    known += [group_shape.ON_DEMAND] if pool.capacity.on_demand else []
    names = [name for one in settings.pools for name in one.adopt.values()]
    for key, name in pool.adopt.items():
        where = f"{path}.adopt.{key}"
        if key not in known:
            has = ", ".join(known) or "none that can be adopted"
            yield Problem(
                path=where, wrong=f"is not a group of the pool ({has})", value=name, remedy="correct the key"
            )
        if names.count(name) > 1:
            yield Problem(path=where, wrong="is adopted twice", value=name, remedy="name it once")
    if pool.network == "efa":
        yield Problem(
            path=f"{path}.adopt",
            wrong="is not possible with network: efa",
            remedy="remove it: running instances cannot change their placement group",
        )
