"""Quotas of the account. `gpufleet doctor --fleet` compares them with the pools' maxima, the console with usage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpufleet.console.exporter import QuotaUse
from gpufleet.domain.activity import CloudError
from gpufleet.domain.clocks import is_over
from gpufleet.domain.findings import Finding
from gpufleet.domain.model import Cloud, Instance
from gpufleet.logs import Log, log_change
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.quotas import QuotaNeed, needs, uses

LIMITS_EVERY: Final = timedelta(hours=1)
"""Limits change only on request. A failed read is repeated after this time, too."""


def examine(document: FleetDocument) -> Iterator[Finding]:
    """One finding for each quota that the fleet uses."""
    wanted = needs(document)
    place = f"{document.cloud}-{document.environment}"
    try:
        found = limits(document, wanted)
    except CloudError as error:
        yield Finding(
            name=f"{place} quotas",
            ok=False,
            found="not known",
            remedy=f"{error}; allow servicequotas:GetServiceQuota (AWS) or compute.regions.get (Google Cloud)",
        )
        return
    for need in wanted:
        yield compare(place, need, found)


def compare(place: str, need: QuotaNeed, limits: Mapping[str, float]) -> Finding:
    """Compare a need with the account's limit. An unknown quota gives a note that says where to look it up."""
    if need.quota is None or need.quota not in limits:
        return Finding(
            name=f"{place} quota",
            ok=True,
            found=f"{need.for_}: up to {need.most} {need.unit} wanted; its quota cannot be read here",
            remedy="look it up on the cloud's quota page",
        )
    limit = limits[need.quota]
    ok = need.most <= limit
    return Finding(
        name=f"{place} {need.quota}",
        ok=ok,
        found=f"{need.for_}: up to {need.most} {need.unit} wanted, {limit:g} allowed",
        remedy=""
        if ok
        else f"request {need.most} {need.unit}, or lower max of the pools; until then they cannot reach it",
    )


def limits(document: FleetDocument, wanted: Sequence[QuotaNeed]) -> Mapping[str, float]:
    """The account's limit of each quota, as far as it is known. Raises CloudError."""
    match document.cloud:
        case Cloud.AWS:
            from gpufleet.clouds.aws import quotas as aws
            from gpufleet.clouds.aws.calls import AwsCalls

            codes = sorted({need.quota for need in wanted if need.quota is not None})
            return aws.limits(AwsCalls(document.region), codes)
        case Cloud.GCP:
            from gpufleet.clouds.gcp import quotas as google
            from gpufleet.clouds.gcp.calls import GoogleCalls

            return google.limits(GoogleCalls(document.account), document.region)


@dataclass(slots=True, kw_only=True)
class QuotaMeter:
    """Measures how much of each quota one fleet uses. A limit that cannot be read has no value, and the log has the
    error.
    """

    document: FleetDocument
    instances: Callable[[], Sequence[Instance]]
    """Raises OSError when the inventory is incomplete."""
    log: Log
    limits: Callable[[FleetDocument, Sequence[QuotaNeed]], Mapping[str, float]] = limits
    """Raises CloudError."""
    _known: Mapping[str, float] = field(default_factory=dict[str, float])
    _asked: datetime | None = None
    _logged: str = ""

    def read(self, now: datetime) -> tuple[QuotaUse, ...]:
        """The quotas with a known limit; empty when the inventory is incomplete."""
        self._learn(now)
        if not self._known:
            return ()
        try:
            found = uses(self.document.cloud, self.instances())
        except OSError as error:
            self._log_change(f"instances cannot be read: {error}")
            return ()
        return tuple(
            QuotaUse(quota=use.quota, unit=use.unit, used=use.used, limit=self._known[use.quota])
            for use in found
            if self._known.get(use.quota)
        )

    def _learn(self, now: datetime) -> None:
        if not is_over(self._asked, LIMITS_EVERY, now):
            return
        self._asked = now
        try:
            self._known = self.limits(self.document, needs(self.document))
        except CloudError as error:
            self._known = {}
            self._log_change(f"limits cannot be read: {error}")

    def _log_change(self, why: str) -> None:
        log_change(self.log, "quotas", self._logged, why)
        self._logged = why
