"""AWS API calls. Reads all pages, counts the calls, and translates errors to CloudError."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    InvalidConfigError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from gpufleet.clouds.aws.instance_parser import lean
from gpufleet.clouds.aws.moments import moment
from gpufleet.domain.activity import CloudError

CONFIG: Final = Config(retries={"mode": "adaptive", "max_attempts": 8}, connect_timeout=10, read_timeout=30)
"""Adaptive mode: boto3 lowers its request rate when AWS throttles the account."""
ONCE: Final = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=10, read_timeout=30)
"""No retries, for destructive calls: after a minute of retries, the data that led to the decision is outdated."""

BROKEN: Final = (BotoCoreError, ResponseParserError, json.JSONDecodeError, EOFError)
"""Errors for a missing or incomplete response. ResponseParserError is not a subclass of BotoCoreError.

The last two are about credentials: a `credential_process` that prints no JSON, an MFA code without a terminal.
"""
_CREDENTIALS: Final = (
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    InvalidConfigError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
    json.JSONDecodeError,
    EOFError,
)
NOT_ALLOWED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
"""Codes of a CloudError if the credentials lack a permission."""
NO_CREDENTIALS: Final = "NoCredentials"
"""Code of a CloudError if there are no credentials, or if they cannot be renewed (an expired SSO session)."""
NOT_LOGGED_IN: Final = frozenset(
    {NO_CREDENTIALS, "AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId"}
)
"""Codes of a CloudError for which `LOGIN` is the remedy."""
LOGIN: Final = "log in (`aws sso login`), or name a profile (AWS_PROFILE)"
_MAKING: Final = threading.Lock()
"""Guards the creation of clients: sessions are not thread-safe. Clients are."""


def load(session: Any, region: str, profile: str | None = None) -> Any:
    """Return the credentials of a session of botocore; None: there are none. Raises BotoCoreError.

    `region`: where roles are assumed; the profile need not name a region.
    """
    session.set_config_variable("region", region)
    try:
        return session.get_credentials()
    except BotoCoreError:
        raise  # some are also OSError
    except (OSError, ValueError, AttributeError) as error:
        # what botocore does not translate: a `credential_process` that does not start, or prints no JSON object
        name = profile or os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE") or "default"
        what = error if isinstance(error, OSError) else f"it printed no valid JSON: {error}"
        provider = f"the credential_process of profile {name!r}"
        raise CredentialRetrievalError(provider=provider, error_msg=what) from error


@cache
def _session() -> botocore.session.Session:
    """One session per process, so that each API description is loaded once. Parses timestamps with `moment`.

    A boto3 session creates the same clients, but its import takes longer than all other imports together.
    """
    session = botocore.session.Session()
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
    return session


class AwsCalls:
    """The AWS clients of one region. All calls use this class."""

    def __init__(self, region: str, client: Callable[[str], Any] | None = None) -> None:
        self.region = region
        self._given = client
        self._clients: dict[tuple[str, bool], Any] = {}
        self.counts: dict[str, int] = {}
        self._counting = threading.Lock()

    def one(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one call. Raises CloudError with the operation, the region and the message from AWS."""
        return self._called(f"{service}:{operation}", arguments)

    def once(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one destructive call, as `one` but without retries."""
        return self._called(f"{service}:{operation}", arguments, retried=False)

    def _called(self, name: str, arguments: Mapping[str, Any], *, retried: bool = True) -> Mapping[str, Any]:
        client = self._client(name, retried=retried)
        self._count(name)
        try:
            return getattr(client, name.partition(":")[2])(**arguments)
        except ClientError as error:
            raise self._refused(name, error) from error
        except BROKEN as error:
            raise self._failed(name, error) from error

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """All items under `key` of all pages. Raises CloudError if a page fails: partial lists are never returned."""
        name = f"{service}:{operation}"
        client = self._client(name)
        try:
            for page in client.get_paginator(operation).paginate(**arguments):
                self._count(name)
                if key not in page:
                    raise CloudError(f"{name} in {self.region}: a page contains no {key}, so the list is incomplete")
                yield from page[key]
        except ClientError as error:
            self._count(name)
            raise self._refused(name, error) from error
        except BROKEN as error:
            self._count(name)
            raise self._failed(name, error) from error

    def _count(self, name: str) -> None:
        with self._counting:
            self.counts[name] = self.counts.get(name, 0) + 1

    def _client(self, name: str, *, retried: bool = True) -> Any:
        """The client of a call. Raises CloudError if its credentials cannot be loaded."""
        service = name.partition(":")[0]
        try:
            with _MAKING:
                if (service, retried) not in self._clients:
                    made = self._of_session(service, retried) if self._given is None else self._given(service)
                    self._clients[service, retried] = made
                return self._clients[service, retried]
        except BROKEN as error:
            raise self._failed(name, error) from error

    def _of_session(self, service: str, retried: bool) -> Any:
        session = _session()
        if load(session, self.region) is None:
            raise NoCredentialsError
        client = session.create_client(service, region_name=self.region, config=CONFIG if retried else ONCE)
        return lean(client) if service == "ec2" else client

    def _failed(self, name: str, error: Exception) -> CloudError:
        if isinstance(error, NoCredentialsError):
            # a client loads credentials only when it is created; discard the clients that have none
            with _MAKING:
                self._clients.clear()
        code = NO_CREDENTIALS if isinstance(error, _CREDENTIALS) else ""
        why = "the AWS profile needs an MFA code, and there is no terminal" if isinstance(error, EOFError) else error
        return CloudError(f"{name} in {self.region} failed: {why}", code)

    def _refused(self, name: str, error: ClientError) -> CloudError:
        detail = error.response.get("Error", {})
        code = str(detail.get("Code", ""))
        return CloudError(f"{name} in {self.region} was refused: {code}: {detail.get('Message', error)}", code)
