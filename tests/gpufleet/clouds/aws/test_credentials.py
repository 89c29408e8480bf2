"""Late credentials: a process recovers if the metadata service did not respond at first."""

from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError


class Client:
    """An EC2 client that was created with or without credentials."""

    def __init__(self, known: bool) -> None:
        self._known = known

    def describe_regions(self) -> dict[str, Any]:
        if not self._known:
            raise NoCredentialsError
        return {"Regions": ["us-east-1"]}

    def get_paginator(self, operation: str) -> "Client":
        return self

    def paginate(self) -> list[dict[str, Any]]:
        return [self.describe_regions()]


def test_a_client_without_credentials_is_recreated() -> None:
    made: list[str] = []

    def make(service: str) -> Client:
        made.append(service)
        return Client(known=len(made) > 2)

    calls = AwsCalls("us-east-1", make)
    with pytest.raises(CloudError, match="Unable to locate credentials"):
        calls.one("ec2", "describe_regions")
    with pytest.raises(CloudError, match="Unable to locate credentials"):
        list(calls.pages("ec2", "describe_regions", "Regions"))
    assert calls.one("ec2", "describe_regions") == {"Regions": ["us-east-1"]}
    assert list(calls.pages("ec2", "describe_regions", "Regions")) == ["us-east-1"]
    assert len(made) == 3, "one that works is kept"
