"""Decides whether the ledger URL of a document is safe for sending a password."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

_URL: Final = re.compile(
    r"postgresql(?:\+psycopg)?://(?:[^@/?#]*@)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]*)(?::\d{1,5})?"
    r"(?:/[^@/?#]*)?(?:\?(?P<query>[^@#]*))?"
)
"""Stricter than the URL parsers of SQLAlchemy and libpq, so that neither can find another host than this one."""
_LOCAL: Final = re.compile(r"localhost|127(?:\.\d{1,3}){3}|\[?::1\]?|/.*")
_NAME: Final = re.compile(r"[a-z_]+")
_FILE_OPTIONS: Final = ("service", "servicefile", "passfile")
"""Options that name files on the reader's machine that contain hosts or passwords."""
_AUTHENTICATION: Final = frozenset({"scram-sha-256", "none"})
"""Authentication methods that do not send the password to the server."""
REMEDY: Final = "write ledger_url as postgresql://USER@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE"


def why_unverified(url: str) -> str | None:
    """Return why a password could reach another server than the ledger's; None if it cannot.

    SQLite, loopback and Unix sockets are safe; any other server must prove its name by TLS.
    """
    if url.startswith(("sqlite:", "sqlite+")):
        return None
    found = _URL.fullmatch(url)
    if found is None:
        return "is neither a SQLite URL nor a URL of PostgreSQL on one host"
    options = _options(found["query"] or "")
    if options is None:
        return "contains an option name with characters other than a-z and _"
    if file_options := [name for name in _FILE_OPTIONS if name in options]:
        return f"has the option {file_options[0]}"
    if not set(",".join(options.get("require_auth", ())).split(",")) - {""} <= _AUTHENTICATION:
        return "allows authentication methods that send the password to the server (require_auth)"
    if _is_local(found["host"], options) or options.get("sslmode") == ["verify-full"]:
        return None
    return "has no sslmode=verify-full, so a server that impersonates the database could get the password"


def _options(query: str) -> Mapping[str, Sequence[str]] | None:
    """Return the options with their raw values. They are not decoded, so an encoded value never equals a checked one.
    None if the name of an option could change when it is decoded."""
    found: dict[str, list[str]] = {}
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if not _NAME.fullmatch(name):
            return None
        found.setdefault(name, []).append(value)
    return found


def _is_local(host: str, options: Mapping[str, Sequence[str]]) -> bool:
    """Return whether all hosts in the URL are this machine. No host means libpq's default, a Unix socket."""
    named = [
        host,
        *(one for key in ("host", "hostaddr") for value in options.get(key, ()) for one in value.split(",")),
    ]
    return all(_LOCAL.fullmatch(one) for one in named if one)
