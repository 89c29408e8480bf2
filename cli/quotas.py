"""`gpufleet doctor --fleet`: whether the account's quotas carry the pools' maxima."""

from collections.abc import Iterator, Mapping, Sequence

from fleet.activity import CloudError
from fleet.document import FleetDocument
from fleet.model import Cloud
from fleet.quotas import Need, needs
from localcloud.control.health import Finding


def examine(document: FleetDocument) -> Iterator[Finding]:
    """One finding for each quota that the fleet touches."""
    wanted = needs(document)
    place = f"{document.cloud}-{document.environment}"
    try:
        found = _limits(document, wanted)
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


def compare(place: str, need: Need, limits: Mapping[str, float]) -> Finding:
    """A need beside what the account has. An unknown quota is no yes: it is a note that says where to look."""
    if need.quota is None or need.quota not in limits:
        return Finding(
            name=f"{place} quota",
            ok=True,
            found=f"{need.for_}: up to {need.most} {need.unit} wanted; its quota cannot be read here",
            remedy="look it up in the cloud's quota page",
        )
    limit = limits[need.quota]
    ok = need.most <= limit
    return Finding(
        name=f"{place} {need.quota}",
        ok=ok,
        found=f"{need.for_}: up to {need.most} {need.unit} wanted, {limit:g} allowed",
        remedy=""
        if ok
        else f"ask for {need.most} {need.unit}, or lower max of the pools; until then they stop short",
    )


def _limits(document: FleetDocument, wanted: Sequence[Need]) -> Mapping[str, float]:
    if document.cloud is Cloud.GCP:
        from clouds.gcp import quotas as google
        from clouds.gcp.calls import GoogleCalls

        return google.limits(GoogleCalls(document.account), document.region)
    from clouds.aws import quotas as aws
    from clouds.aws.calls import AwsCalls

    codes = sorted({need.quota for need in wanted if need.quota is not None})
    return aws.limits(AwsCalls(document.region), codes)
