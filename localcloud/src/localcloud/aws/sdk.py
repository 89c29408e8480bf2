"""Typed access to boto3 and botocore, which have no type hints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

__all__ = [
    "BotoCoreError",
    "ClientError",
    "Config",
    "ResponseParserError",
    "Session",
    "error_code",
    "session",
    "spelled",
]

_boto3: Any = boto3
_botocore: Any = botocore


class Session(Protocol):
    """Credentials and a region. Clients are `Any`: boto3 creates their methods from the service's model."""

    def client(
        self,
        service_name: str,
        *,
        region_name: str | None = None,
        endpoint_url: str | None = None,
        config: Config | None = None,
    ) -> Any: ...


def session(*, region: str | None = None, access_key: str | None = None, secret_key: str | None = None) -> Session:
    """A session with these keys, or, without keys, with those of the environment."""
    made: Session = _boto3.Session(access_key, secret_key, region_name=region)
    return made


def error_code(error: ClientError) -> str:
    """AWS's code of an error; empty if the answer contains none."""
    response: Mapping[str, Mapping[str, object]] = vars(error)["response"]
    return str(response.get("Error", {}).get("Code", ""))


def spelled(name: str, separator: str = "_") -> str:
    """An operation's or a parameter's name as Python (`_`) or the AWS CLI (`-`) spells it."""
    return str(_botocore.xform_name(name, separator))
