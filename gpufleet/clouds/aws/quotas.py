"""EC2 quotas by quota code."""

from collections.abc import Mapping, Sequence

from gpufleet.clouds.aws.calls import AwsCalls


def limits(calls: AwsCalls, codes: Sequence[str]) -> Mapping[str, float]:
    """The limit of each quota, in vCPUs. Raises CloudError."""
    found: dict[str, float] = {}
    for code in codes:
        answer = calls.one("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        found[code] = float(answer["Quota"]["Value"])
    return found
