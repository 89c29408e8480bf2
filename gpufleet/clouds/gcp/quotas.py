"""Quotas of a region of Compute Engine by their metrics."""

from collections.abc import Mapping

from gpufleet.clouds.gcp.calls import GoogleCalls


def limits(calls: GoogleCalls, region: str) -> Mapping[str, float]:
    """The limit of each metric that the region lists. Raises CloudError."""
    answer = calls.one("regions", "get", region=region)
    return {str(quota.metric): float(quota.limit) for quota in answer.quotas}
