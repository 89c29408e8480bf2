"""Who may call the embedded cloud: who holds the token of this start, and each machine by what its metadata gives.

Every server on loopback is open to every web page on this machine and to every Unix user of it, and what the clouds'
APIs are asked for runs programs as the user who started them.
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
"""Holds the token for clients of the embedded Google Cloud and for the local provider."""
OWNER: Final = "local"
"""The principal of calls with the token itself."""
OPEN_PAGES: Final = frozenset({"/_localcloud/health"})
"""Of the control APIs: what everybody may GET who is no page of another site. It says whether the cloud runs."""
REMEDY: Final = 'run `eval "$(gpufleet local env)"` again'
_LONGEST_SHOWN: Final = 200


class Unknown(StrEnum):
    """Why a request's sender is not known."""

    NO_TOKEN = "no-token"  # noqa: S105 - a code
    WRONG_TOKEN = "wrong-token"  # noqa: S105 - a code
    NO_SIGNATURE = "no-signature"
    WRONG_SIGNATURE = "wrong-signature"
    OTHER_USER = "other-user"


Refusal = Foreign | Unknown
MESSAGES: Final = MappingProxyType(
    {
        **FOREIGN_MESSAGES,
        Unknown.NO_TOKEN: f"the request shows no token of this embedded cloud: {REMEDY}",
        Unknown.WRONG_TOKEN: f"the request's token is not of this start of the embedded cloud: {REMEDY}",
        Unknown.NO_SIGNATURE: "the request has no signature in its Authorization header: the embedded cloud takes "
        f"requests signed with the keys of `gpufleet local env` or of a machine; {REMEDY}",
        Unknown.WRONG_SIGNATURE: f"no key of this start of the embedded cloud has signed the request: {REMEDY}",
        Unknown.OTHER_USER: "the request comes from another Unix user than the one who started the embedded cloud",
    }
)
"""One sentence of each."""


class RefusedError(Exception):
    """A request that is not answered but with 403; `str()` is the sentence."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(MESSAGES[refusal])
        self.refusal = refusal


class Callers:
    """Safe to use from many threads. Nothing here is ever printed."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("a token must not be empty")
        self._token = token
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[str, str]] = {}
        self._bearers = {_digest(token): OWNER}

    def hand_out_key(self, access_key: str, secret_key: str, principal: str) -> None:
        """A machine was given this key pair of AWS."""
        with self._lock:
            self._keys[access_key] = secret_key, principal

    def hand_out_token(self, token: str, principal: str) -> None:
        """A machine was given this access token of Google."""
        with self._lock:
            self._bearers[_digest(token)] = principal

    def key(self, access_key: str) -> tuple[str, str]:
        """The secret key that signs for an access key, and its principal. With the token of this start as secret any
        access key will do: it is a name that its holder chooses."""
        with self._lock:
            return self._keys.get(access_key, (self._token, access_key))

    def bearer(self, token: str) -> str | None:
        """The principal of a bearer token; None: nobody's. Looked up by its digest, so that time tells nothing."""
        with self._lock:
            return self._bearers.get(_digest(token))

    def is_owner(self, token: str) -> bool:
        """Whether it is the token of this start. Compared in constant time."""
        return hmac.compare_digest(token.encode(), self._token.encode())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


Header = Callable[[str], str | None]
"""The value of a header by its name, those of a repeated one joined by commas."""


@dataclass(frozen=True, slots=True)
class CallerCheck:
    """The check of one server's requests, by their headers alone; each server asks it first."""

    callers: Callers
    hosts: Collection[str]
    """What Host may be, as `127.16.0.2:4566`: the server's own address."""

    def check_site(self, header: Header) -> None:
        """Raises RefusedError for what a page of another site may have sent."""
        found = foreign(header, self.hosts)
        if found is not None:
            raise RefusedError(found)

    def check_owner(self, token: str | None) -> None:
        """Raises RefusedError where it is not the token of this start."""
        if token is None:
            raise RefusedError(Unknown.NO_TOKEN)
        if not self.callers.is_owner(token):
            raise RefusedError(Unknown.WRONG_TOKEN)

    def check_admin(self, header: Header, method: str, path: str) -> None:
        """Check a request of the admin API, `/_localcloud/`. Raises RefusedError."""
        self.check_site(header)
        if method != "GET" or path not in OPEN_PAGES:
            self.check_owner(bearer_of(header("Authorization")))

    def principal(self, header: Header) -> str:
        """Who asks with a bearer token. Raises RefusedError."""
        self.check_site(header)
        token = bearer_of(header("Authorization"))
        if token is None:
            raise RefusedError(Unknown.NO_TOKEN)
        found = self.callers.bearer(token)
        if found is None:
            raise RefusedError(Unknown.WRONG_TOKEN)
        return found


def bearer_of(authorization: str | None) -> str | None:
    """The token of an Authorization header `Bearer TOKEN`; None where it is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def log_refusal(server: str, method: str, path: str, refusal: Refusal) -> None:
    """A line in the cloud's log; the path without its query, which may hold a secret."""
    shown = ascii(path.partition("?")[0][:_LONGEST_SHOWN])
    print(f"{server}: {ascii(method[:20])} {shown} refused: {refusal}", file=sys.stderr, flush=True)


def make_token(state: Path) -> str:
    """A new token, in the folder for its owner's eyes alone. Raises OSError."""
    token = secrets.token_urlsafe(32)
    write_private(state / TOKEN_FILE, token + "\n")
    return token


def read_token(state: Path) -> str | None:
    """The token of the cloud that runs with this folder; None where none does."""
    try:
        return (state / TOKEN_FILE).read_text("utf-8").strip() or None
    except OSError:
        return None
