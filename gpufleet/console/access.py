"""Access control of the console: a token, kept as a signed cookie, or a user name from a trusted proxy."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

COOKIE: Final = "gpufleet"
PROXY_SECRET: Final = "x-gpufleet-proxy-secret"  # noqa: S105 - the header's name
"""The header that authenticates the proxy: any user with a shell or a forwarded port connects from loopback, too."""
SESSION_S: Final = 12 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`token`: the console's access token. Requests with `proxy_header` and the proxy's secret are signed in."""

    token: str
    proxy_header: str = ""
    proxy_secret: str = ""
    """If empty, `proxy_header` is ignored."""
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """A random key of this process, so that sessions end with it."""

    def session(self, now: float) -> str:
        """The value of a session cookie."""
        until = str(int(now) + SESSION_S)
        return f"{until}.{self._sign('session', until)}"

    def csrf_token(self, user: str) -> str:
        """The value that forms contain, so that other sites cannot submit them."""
        return self._sign("stamp", user)

    def is_token(self, given: str) -> bool:
        """Compares in constant time."""
        return bool(self.token) and hmac.compare_digest(given.encode(), self.token.encode())

    def user(self, headers: Mapping[str, str], now: float) -> str | None:
        """The user of a request; None: not signed in."""
        if self.proxy_header and (name := headers.get(self.proxy_header.lower())) and self._is_proxy(headers):
            return name[:100]
        bearer = headers.get("authorization", "")
        if bearer.startswith("Bearer ") and self.is_token(bearer.removeprefix("Bearer ").strip()):
            return "token"
        return "token" if self._is_session(headers.get("cookie", ""), now) else None

    def _is_session(self, cookie: str, now: float) -> bool:
        try:
            found = SimpleCookie(cookie).get(COOKIE)
        except CookieError:
            return False
        until, _, signed = (found.value if found else "").partition(".")
        good = hmac.compare_digest(signed.encode(), self._sign("session", until).encode())
        return good and until.isdigit() and int(until) > now

    def _is_proxy(self, headers: Mapping[str, str]) -> bool:
        given = headers.get(PROXY_SECRET, "")
        return bool(self.proxy_secret) and hmac.compare_digest(given.encode(), self.proxy_secret.encode())

    def _sign(self, kind: str, value: str) -> str:
        return hmac.new(self._secret, f"{kind} {value} {self.token}".encode(), hashlib.sha256).hexdigest()
