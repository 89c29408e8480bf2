"""AWS calls: paged to the end, counted, errors in our words."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from gpufleet.clouds.aws.instance_parser import lean
from gpufleet.clouds.aws.moments import moment
from gpufleet.domain.activity import CloudError

CONFIG: Final = Config(retries={"mode": "adaptive", "max_attempts": 8}, connect_timeout=10, read_timeout=30)
"""Adaptive: boto3 slows down by itself when a token bucket of the account is empty."""
ONCE: Final = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=10, read_timeout=30)
"""For what destroys: it was decided by a look at the instance, and a minute of retries later that look is old."""

BROKEN: Final = (BotoCoreError, ResponseParserError)
"""No whole answer. botocore tells a cut one by an error that is not of its own family."""
_MAKING: Final = threading.Lock()
"""A session may be used by one thread at a time to make clients; clients themselves are safe."""


@cache
def _session() -> botocore.session.Session:
    """One for the process: it reads an API's description once. Its moments are read by `moment`.

    boto3's own session makes the same clients and takes longer to be imported than all the rest of them.
    """
    session = botocore.session.Session()
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
    return session


class AwsCalls:
    """The clients of one region. Every call goes through here."""

    def __init__(self, region: str, client: Callable[[str], Any] | None = None) -> None:
        self._region = region
        self._given = client
        self._clients: dict[tuple[str, bool], Any] = {}
        self.counts: dict[str, int] = {}
        self._counting = threading.Lock()

    def one(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """One call. Raises CloudError with the operation, the region and the cloud's words."""
        return self._called(self._client(service), service, operation, arguments)

    def once(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """One call that destroys: as `one`, but never tried again behind the back of whoever looked before."""
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
        """Every item under `key` of every page. A page that fails raises: a part is not the whole."""
        name = f"{service}:{operation}"
        try:
            for page in self._client(service).get_paginator(operation).paginate(**arguments):
                self._count(name)
                if key not in page:
                    raise CloudError(f"{name} in {self._region}: a page came without {key}, so the list is not whole")
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
        client = _session().create_client(service, region_name=self._region, config=CONFIG if retried else ONCE)
        return lean(client) if service == "ec2" else client

    def _failed(self, name: str, error: Exception) -> CloudError:
        if isinstance(error, NoCredentialsError):
            # a client asks for credentials when it is made and never again: one without is of no use for ever
            with _MAKING:
                self._clients.clear()
        return CloudError(f"{name} in {self._region} failed: {error}")

    def _refused(self, name: str, error: ClientError) -> CloudError:
        detail = error.response.get("Error", {})
        code = str(detail.get("Code", ""))
        return CloudError(f"{name} in {self._region} was refused: {code}: {detail.get('Message', error)}", code)
