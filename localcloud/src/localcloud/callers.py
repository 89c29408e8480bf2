"""Authentication of callers: the token of this start, or the credentials that a machine got from its metadata.

Every web page in a browser of this computer, and every Unix user of it, can connect to servers on loopback, and calls
of the clouds' APIs run programs as the user who started the embedded cloud.
"""

import hashlib
import hmac
import secrets
import sys
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpufleet.domain.files import write_private
from gpufleet.domain.loopback import FOREIGN_MESSAGES, Foreign, foreign

TOKEN_FILE: Final = "token"  # noqa: S105 - the file's name
VARIABLE: Final = "GPUFLEET_EMULATOR_TOKEN"
"""The variable with the token, for clients of the emulated Google Cloud and for the local provider."""
OWNER: Final = "local"
"""The principal of calls with the token itself."""
PUBLIC_PATHS: Final = frozenset({"/_localcloud/health"})
"""Pages of the admin API that need no token. They are refused only to web pages of other sites."""
REMEDY: Final = 'run `eval "$(gpufleet local env)"` again'
_LONGEST_SHOWN: Final = 200


class Unknown(StrEnum):
    """Why a request is not authenticated."""

    NO_TOKEN = "no-token"  # noqa: S105 - a code
    WRONG_TOKEN = "wrong-token"  # noqa: S105 - a code
    NO_SIGNATURE = "no-signature"
    WRONG_SIGNATURE = "wrong-signature"
    OTHER_USER = "other-user"


Refusal = Foreign | Unknown
MESSAGES: Final = MappingProxyType(
    {
        **FOREIGN_MESSAGES,
        Unknown.NO_TOKEN: f"the request has no token of this embedded cloud: {REMEDY}",
        Unknown.WRONG_TOKEN: f"the request's token is not of this start of the embedded cloud: {REMEDY}",
        Unknown.NO_SIGNATURE: "the request has no signature in its Authorization header: sign it with the "
        f"keys of `gpufleet local env` or of a machine; {REMEDY}",
        Unknown.WRONG_SIGNATURE: f"no key of this start of the embedded cloud has signed the request: {REMEDY}",
        Unknown.OTHER_USER: "the request comes from another Unix user than the one who started the embedded cloud",
    }
)
"""One message for each."""


class RefusedError(Exception):
    """A request that is answered with 403; `str()` is the message."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(MESSAGES[refusal])
        self.refusal = refusal


class Callers:
    """The known tokens and keys. Thread-safe. None of them is ever logged."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("a token must not be empty")
        self._token = token
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[str, str]] = {}
        self._bearers = {_digest(token): OWNER}

    def hand_out_key(self, access_key: str, secret_key: str, principal: str) -> None:
        """Add an AWS key pair that a machine got."""
        with self._lock:
            self._keys[access_key] = secret_key, principal

    def hand_out_token(self, token: str, principal: str) -> None:
        """Add a Google access token that a machine got."""
        with self._lock:
            self._bearers[_digest(token)] = principal

    def key(self, access_key: str) -> tuple[str, str]:
        """The secret key of an access key, and its principal.

        The secret key of an unknown access key is the token of this start: its holder may choose any name as key.
        """
        with self._lock:
            return self._keys.get(access_key, (self._token, access_key))

    def bearer(self, token: str) -> str | None:
        """The principal of a bearer token, or None. Looked up by digest, so that timing reveals nothing."""
        with self._lock:
            return self._bearers.get(_digest(token))

    def is_owner(self, token: str) -> bool:
        """Whether it is the token of this start, compared in constant time."""
        return hmac.compare_digest(token.encode(), self._token.encode())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


Header = Callable[[str], str | None]
"""The value of a header by its name, those of a repeated one joined by commas."""


@dataclass(frozen=True, slots=True)
class CallerCheck:
    """Checks the headers of all requests of one server before they are answered."""

    callers: Callers
    hosts: Collection[str]
    """Allowed values of the header Host: the server's own addresses, as `127.16.0.2:4566`."""

    def check_site(self, header: Header) -> None:
        """Raises RefusedError for a request that a web page of another site may have sent."""
        found = foreign(header, self.hosts)
        if found is not None:
            raise RefusedError(found)

    def check_owner(self, token: str | None) -> None:
        """Raises RefusedError unless it is the token of this start."""
        if token is None:
            raise RefusedError(Unknown.NO_TOKEN)
        if not self.callers.is_owner(token):
            raise RefusedError(Unknown.WRONG_TOKEN)

    def check_admin(self, header: Header, method: str, path: str) -> None:
        """Check a request of the admin API, `/_localcloud/`. Raises RefusedError."""
        self.check_site(header)
        if method != "GET" or path not in PUBLIC_PATHS:
            self.check_owner(bearer_of(header("Authorization")))

    def principal(self, header: Header) -> str:
        """The principal of a request with a bearer token. Raises RefusedError."""
        self.check_site(header)
        token = bearer_of(header("Authorization"))
        if token is None:
            raise RefusedError(Unknown.NO_TOKEN)
        found = self.callers.bearer(token)
        if found is None:
            raise RefusedError(Unknown.WRONG_TOKEN)
        return found


def bearer_of(authorization: str | None) -> str | None:
    """The token of an Authorization header `Bearer TOKEN`; None for other headers."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def log_refusal(server: str, method: str, path: str, refusal: Refusal) -> None:
    """Write a line to the cloud's log. The query is left out: it may contain a secret."""
    shown = ascii(path.partition("?")[0][:_LONGEST_SHOWN])
    print(f"{server}: {ascii(method[:20])} {shown} refused: {refusal}", file=sys.stderr, flush=True)


def make_token(state: Path) -> str:
    """Write a new token to the folder, readable by its owner only. Raises OSError."""
    token = secrets.token_urlsafe(32)
    write_private(state / TOKEN_FILE, token + "\n")
    return token


def read_token(state: Path) -> str | None:
    """The token of the cloud that runs with this folder; None if none runs."""
    try:
        return (state / TOKEN_FILE).read_text("utf-8").strip() or None
    except OSError:
        return None
