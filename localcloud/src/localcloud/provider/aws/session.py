"""boto3 clients of the embedded cloud. Nothing outside the loopback interface can be reached through them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcloud.addresses import ACCESS_KEY
from localcloud.aws.sdk import Config, session
from localcloud.documents import inner, items
from localcloud.provider.session import (
    MAX_RETRIES,
    NotLocalError,
    Session,
    Settings,
    decode_settings,
    require_loopback,
    token_of,
)

_KNOWN_SETTINGS = frozenset(
    {
        "accessKey",
        "allowedAccountIds",
        "defaultTags",
        "endpoints",
        "ignoreTags",
        "maxRetries",
        "region",
        "s3UsePathStyle",
        "secretKey",
        "skipCredentialsValidation",
        "skipMetadataApiCheck",
        "skipRegionValidation",
        "skipRequestingAccountId",
        "version",
    }
)


def read_settings(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Settings from the provider's arguments (nested ones are JSON texts) and the environment.

    Raises:
        NotLocalError: no endpoint is given, or one that is not loopback.
        ValueError: a setting that only a real account can honour, or no region.
    """
    given = decode_settings(arguments, _KNOWN_SETTINGS)
    for name, url in environment.items():
        if name.startswith("AWS_ENDPOINT_URL") and url:
            require_loopback(url, name)
    endpoints: list[Mapping[str, str]] = items(given, "endpoints")
    urls = [url for entry in endpoints for url in entry.values() if url]
    for url in urls:
        require_loopback(url, "endpoints")
    endpoint = (urls or [environment.get("AWS_ENDPOINT_URL", "")])[0]
    if not endpoint:
        raise NotLocalError(
            "AWS_ENDPOINT_URL is not set: the local provider connects to the embedded cloud only. "
            "Run `gpufleet local up` and use the environment of `gpufleet local env`"
        )
    region = given.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        raise ValueError("aws:region is not set: `pulumi config set aws:region us-east-1`")
    retries = str(given.get("maxRetries") or MAX_RETRIES)
    if not retries.isdecimal():
        raise ValueError(f"aws:maxRetries: expected a whole number, got {retries!r}")
    ignore = inner(given, "ignoreTags")
    return Settings(
        endpoint=endpoint,
        token=token_of(environment),
        region=str(region),
        default_tags=inner(given, "defaultTags", "tags"),
        ignored_keys=frozenset(items(ignore, "keys")),
        ignored_prefixes=tuple(items(ignore, "keyPrefixes")),
        max_retries=int(retries),
    )


class AwsSession(Session):
    """boto3 clients with keys that open the embedded cloud and nothing else."""

    def __init__(self, settings: Settings, *, root: Path | None = None) -> None:
        super().__init__(settings, root=root)
        self._session = session(access_key=ACCESS_KEY, secret_key=settings.token)

    def make_client(self, service: str, region: str) -> Any:
        """A boto3 client."""
        return self._session.client(
            service,
            region_name=region,
            endpoint_url=self.settings.endpoint,
            config=Config(
                proxies={},
                retries={"max_attempts": self.settings.max_retries, "mode": "standard"},
                s3={"addressing_style": "path"},
                max_pool_connections=32,
                connect_timeout=5,
                read_timeout=60,
            ),
        )


def open_session(arguments: Mapping[str, Any], environment: Mapping[str, str], root: Path) -> AwsSession:
    """The session of a configured provider. Raises ValueError."""
    return AwsSession(read_settings(arguments, environment), root=root)
