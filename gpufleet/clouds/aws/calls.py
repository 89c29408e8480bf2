"""AWS API calls. Reads all pages, counts the calls, and translates errors to CloudError."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
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

BROKEN: Final = (BotoCoreError, ResponseParserError)
"""Errors for a missing or incomplete response. ResponseParserError is not a subclass of BotoCoreError."""
_CREDENTIALS: Final = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
NOT_ALLOWED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
"""Codes of a CloudError if the credentials lack a permission."""
NO_CREDENTIALS: Final = "NoCredentials"
"""Code of a CloudError if there are no credentials, or if they cannot be renewed (an expired SSO session)."""
_MAKING: Final = threading.Lock()
"""Guards the creation of clients: sessions are not thread-safe. Clients are."""


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
        return self._called(self._client(service), service, operation, arguments)

    def once(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one destructive call, as `one` but without retries."""
        return self._called(self._client(service, retried=False), service, operation, arguments)

    def _called(self, client: Any, service: str, operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        name = f"{service}:{operation}"
        self._count(name)
        try:
            return getattr(client, operation)(**arguments)
        except ClientError as error:
            raise self._refused(name, error) from error
        except BROKEN as error:
            raise self._failed(name, error) from error

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """All items under `key` of all pages. Raises CloudError if a page fails: partial lists are never returned."""
        name = f"{service}:{operation}"
        try:
            for page in self._client(service).get_paginator(operation).paginate(**arguments):
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

    def _client(self, service: str, *, retried: bool = True) -> Any:
        with _MAKING:
            if (service, retried) not in self._clients:
                made = self._of_session(service, retried) if self._given is None else self._given(service)
                self._clients[service, retried] = made
            return self._clients[service, retried]

    def _of_session(self, service: str, retried: bool) -> Any:
        client = _session().create_client(service, region_name=self.region, config=CONFIG if retried else ONCE)
        return lean(client) if service == "ec2" else client

    def _failed(self, name: str, error: Exception) -> CloudError:
        if isinstance(error, NoCredentialsError):
            # a client loads credentials only when it is created; discard the clients that have none
            with _MAKING:
                self._clients.clear()
        code = NO_CREDENTIALS if isinstance(error, _CREDENTIALS) else ""
        return CloudError(f"{name} in {self.region} failed: {error}", code)

    def _refused(self, name: str, error: ClientError) -> CloudError:
        detail = error.response.get("Error", {})
        code = str(detail.get("Code", ""))
        return CloudError(f"{name} in {self.region} was refused: {code}: {detail.get('Message', error)}", code)
