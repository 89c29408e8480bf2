"""Compute Engine quotas of a region, by metric."""

from collections.abc import Mapping

from gpufleet.clouds.gcp.calls import GoogleCalls


def limits(calls: GoogleCalls, region: str) -> Mapping[str, float]:
    """The limit of each quota metric of the region. Raises CloudError."""
    answer = calls.one("regions", "get", region=region)
    return {str(quota.metric): float(quota.limit) for quota in answer.quotas}
