"""Secrets of a project, read with the caller's own rights."""

import os
from typing import Any, Final
from urllib.parse import urlsplit

from clouds.gcp.signed import secret
from fleet.activity import CloudError

ENDPOINT: Final = "GPUFLEET_SECRETMANAGER_ENDPOINT"
"""An emulator's address on loopback."""
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def read_secret(project: str, name: str) -> str:
    """The newest version of a secret. Raises CloudError that names it, never its value."""
    try:
        return secret(f"projects/{project}/secrets/{name}", _token())
    except OSError as error:
        raise CloudError(f"secret {name} of {project} cannot be read: {error}") from error


def _token() -> str:
    endpoint = os.environ.get(ENDPOINT)
    if endpoint:
        if not (urlsplit(endpoint).hostname or "").startswith("127."):
            raise CloudError(f"{ENDPOINT} is {endpoint!r}; it may only name an address on loopback")
        return "local"
    import google.auth
    import google.auth.transport.requests
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials: Any = google.auth.default(scopes=[_SCOPE])[0]  # pyright: ignore[reportUnknownMemberType]
        credentials.refresh(google.auth.transport.requests.Request())
    except GoogleAuthError as error:
        words = f"no Google credentials: {error}; run `gcloud auth application-default login`"
        raise CloudError(words) from error
    return str(credentials.token)
