"""The regions that settings can name: those in the clouds' own lists."""

import boto3
import pytest

from gpufleet.domain.model import Cloud
from gpufleet.domain.regions import REGIONS, hint
from gpufleet.prices.packaged import PackagedPrices


def test_regions_of_aws_equal_those_of_botocore() -> None:
    assert set(boto3.Session().get_available_regions("ec2")) == REGIONS[Cloud.AWS]


def test_regions_of_google_have_prices() -> None:
    prices = PackagedPrices()
    assert [region for region in REGIONS[Cloud.GCP] if not prices.skus(region)] == []
    assert prices.skus("us-est1") == ()


@pytest.mark.parametrize(
    ("cloud", "region", "text"),
    [
        pytest.param(
            Cloud.AWS, "us-east1", "choose a region of aws: us-east1 is a region of gcp", id="of the other cloud"
        ),
        pytest.param(Cloud.AWS, "eu-centrl-1", "did you mean eu-central-1", id="a typing error"),
        pytest.param(Cloud.GCP, "moon", "choose one such as africa-south1", id="nothing similar"),
    ],
)
def test_similar_regions_are_suggested(cloud: Cloud, region: str, text: str) -> None:
    assert hint(cloud, region).startswith(text)
