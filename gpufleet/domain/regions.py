"""The regions of both clouds, to detect a typo before any call to a cloud.

AWS: the commercial partition, as in botocore 1.44 for EC2 (a test compares them). Google Cloud: the regions with
GPU machine types in the packaged price lists (`gpufleet/prices/data/SOURCE.md`; a test compares them).
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from gpufleet.domain.model import Cloud

REGIONS: Final[Mapping[Cloud, frozenset[str]]] = {
    Cloud.AWS: frozenset(
        [
            "af-south-1",
            "ap-east-1",
            "ap-east-2",
            "ap-northeast-1",
            "ap-northeast-2",
            "ap-northeast-3",
            "ap-south-1",
            "ap-south-2",
            "ap-southeast-1",
            "ap-southeast-2",
            "ap-southeast-3",
            "ap-southeast-4",
            "ap-southeast-5",
            "ap-southeast-6",
            "ap-southeast-7",
            "ca-central-1",
            "ca-west-1",
            "eu-central-1",
            "eu-central-2",
            "eu-north-1",
            "eu-south-1",
            "eu-south-2",
            "eu-west-1",
            "eu-west-2",
            "eu-west-3",
            "il-central-1",
            "me-central-1",
            "me-south-1",
            "mx-central-1",
            "sa-east-1",
            "us-east-1",
            "us-east-2",
            "us-west-1",
            "us-west-2",
        ]
    ),
    Cloud.GCP: frozenset(
        [
            "africa-south1",
            "asia-east1",
            "asia-east2",
            "asia-northeast1",
            "asia-northeast2",
            "asia-northeast3",
            "asia-south1",
            "asia-south2",
            "asia-southeast1",
            "asia-southeast2",
            "australia-southeast1",
            "australia-southeast2",
            "europe-central2",
            "europe-north1",
            "europe-southwest1",
            "europe-west1",
            "europe-west10",
            "europe-west12",
            "europe-west2",
            "europe-west3",
            "europe-west4",
            "europe-west6",
            "europe-west8",
            "europe-west9",
            "me-central1",
            "me-central2",
            "me-west1",
            "northamerica-northeast1",
            "northamerica-northeast2",
            "southamerica-east1",
            "southamerica-west1",
            "us-central1",
            "us-east1",
            "us-east4",
            "us-east5",
            "us-south1",
            "us-west1",
            "us-west2",
            "us-west3",
            "us-west4",
        ]
    ),
}  # fmt: skip


def hint(cloud: Cloud, region: str) -> str:
    """Return a hint for a region that the cloud does not have."""
    other = next((c for c in Cloud if c is not cloud and region in REGIONS[c]), None)
    if other is not None:
        return f"choose a region of {cloud}: {region} is a region of {other}"
    found = get_close_matches(region, sorted(REGIONS[cloud]), n=3, cutoff=0.7)
    return f"did you mean {' or '.join(found)}?" if found else f"choose one such as {min(REGIONS[cloud])}"
