"""The answers that one pass waits for: each pool's within its `fallback_after`, however many groups it asks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.decisions import Decision, Plan, Reason
from gpufleet.domain.model import Group
from gpufleet.settings.document import FleetDocument
from watchdogs.draining import sleep_and_renew
from watchdogs.observe.fleet import Looks
from watchdogs.ports import Ports
from watchdogs.spot.zones import OTHERS_AFTER

FIRST_POLL: Final = timedelta(seconds=1)
LONGEST_POLL: Final = timedelta(seconds=15)
"""Between two looks for the answers of groups that were asked: twice as long each time, up to this."""
AWAITED: Final = frozenset({Reason.SPOT_WANTED, Reason.SAFER_ZONE, Reason.RESERVED_IN_FULL})
"""Growth whose answer decides whether on-demand is bought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    pool: str
    size: int
    at: datetime
    unseen: frozenset[str]
    """Instances that the group listed before and that were not alive: they are no answer."""


class Answers:
    """What one pass has asked for and not been answered yet."""

    def __init__(self, document: FleetDocument, ports: Ports, looks: Looks) -> None:
        self._document = document
        self._ports = ports
        self._looks = looks
        self._asks: dict[str, _Ask] = {}
        self.since: dict[str, datetime] = {}
        """By pool: when this pass first asked for something whose answer it waits for."""

    def awaits(self, decision: Decision) -> bool:
        """Whether this size was asked for already, and is waited for."""
        ask = self._asks.get(decision.resource)
        return ask is not None and decision.from_size == decision.to_size == ask.size

    def keep(self, plan: Plan) -> None:
        """Wait no longer for what a plan does not want any more."""
        wanted = {decision.resource for decision in plan.decisions if decision.reason in AWAITED}
        self._asks = {name: ask for name, ask in self._asks.items() if name in wanted}

    def resized(self, decision: Decision, group: Group, living: Collection[str], asked_at: datetime) -> None:
        """Note that a group was resized; `living`: the instances that were seen alive before."""
        self._asks.pop(group.name, None)
        if decision.reason in AWAITED and decision.pool is not None:
            self.since.setdefault(decision.pool, asked_at)
            self._asks[group.name] = _Ask(
                pool=decision.pool,
                size=decision.to_size or 0,
                at=asked_at,
                unseen=frozenset(group.instance_ids) - {*living},
            )

    def wait(self) -> bool:
        """Wait until a pool has all its answers, or is to ask other zones or to buy what stands in.

        Whether anything was waited for. Who has not answered by then is taken for a refusal.
        """
        if not self._asks:
            return False
        clock = self._ports.clock
        pools = {ask.pool for ask in self._asks.values()}
        began = renewed = clock.now()
        until = min((at for pool in pools for at in self._moments(pool) if at > began), default=began)
        pause = FIRST_POLL
        while True:
            self._read()
            now = clock.now()
            self._give_up(now)
            if now >= until or pools != {ask.pool for ask in self._asks.values()}:
                return True
            next_look = min(now + pause, until)
            while clock.now() < next_look:
                renewed = sleep_and_renew(self._ports, renewed)
            pause = min(2 * pause, LONGEST_POLL)

    def _read(self) -> None:
        """Forget who has its instances, or has said why not."""
        there = self._looks.again(self._ports, sorted(self._asks))
        for group in there:
            ask = self._asks[group.name]
            if len([key for key in group.instance_ids if key not in ask.unseen]) >= ask.size:
                del self._asks[group.name]
        happened = self._looks.lists.happened
        asked = [group for group in there if group.name in self._asks]
        happened.wait(self._ports.groups, asked, self._ports.clock.now())
        for name, ask in list(self._asks.items()):
            if any(event.kind.refuses for event in happened.events([name], ask.at)):
                del self._asks[name]

    def _give_up(self, now: datetime) -> None:
        """Take those for refusals that have had the whole time of their pool."""
        over = {ask.pool for ask in self._asks.values() if now >= max(self._moments(ask.pool))}
        for name in [name for name, ask in self._asks.items() if ask.pool in over]:
            self._looks.lists.happened.silent(name, now)
            del self._asks[name]

    def _moments(self, pool: str) -> Sequence[datetime]:
        """When other zones are asked beside those that are silent, and when there is no more time."""
        entry = self._document.pool(pool).watchdogs.spot
        patience = entry.fallback_after if entry is not None else timedelta(0)
        return self.since[pool] + OTHERS_AFTER * patience, self.since[pool] + patience
