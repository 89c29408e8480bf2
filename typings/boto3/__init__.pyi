"""What this project uses of boto3, which carries no types. Clients are made from data at run time, hence `Any`."""

from typing import Any

from boto3.session import Session as Session
from botocore.config import Config

def client(
    service_name: str,
    region_name: str | None = ...,
    *,
    endpoint_url: str | None = ...,
    aws_access_key_id: str | None = ...,
    aws_secret_access_key: str | None = ...,
    aws_session_token: str | None = ...,
    config: Config | None = ...,
) -> Any: ...
