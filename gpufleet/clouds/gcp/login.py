"""Google credentials of the current user. Wraps google-auth, whose type annotations are incomplete."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError, RefreshError
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials

from gpufleet.clouds.gcp.emulator import ENDPOINT, emulator_token
from gpufleet.domain.activity import CloudError

_ASKED_AGAIN_AFTER: Final = timedelta(minutes=5)


def credentials(scope: str) -> Any:
    """Default credentials, for Google's client libraries. Raises CloudError, which states how to log in."""
    try:
        return cast(Any, google.auth).default(scopes=[scope])[0]
    except GoogleAuthError as error:
        message = f"no Google credentials: {error}; run `gcloud auth application-default login`"
        raise CloudError(message) from error


def default_project() -> str | None:
    """The project of the default credentials; None: there are no credentials, or they name no project.

    The metadata server is asked on Google's machines only: elsewhere it takes seconds to find that there is none.
    """
    named = os.environ.get("GOOGLE_CLOUD_PROJECT") or None
    if os.environ.get(ENDPOINT):
        return named
    if not has_login():
        return None
    try:
        return named or cast(Any, google.auth).default()[1]
    except GoogleAuthError:
        return named  # the scan names the failure


def has_login() -> bool:
    """Whether there are default credentials: a file of the user, or those of a machine of Google."""
    where = os.environ.get("CLOUDSDK_CONFIG") or str(Path.home() / ".config" / "gcloud")
    return bool(
        os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        or (Path(where) / "application_default_credentials.json").is_file()
        or os.environ.get("GCE_METADATA_HOST")
        or _is_google_machine()
    )


def _is_google_machine() -> bool:
    try:
        return "Google" in Path("/sys/class/dmi/id/product_name").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def tokens(scope: str) -> Callable[[], str]:
    """A function that returns a valid token and refreshes it when it expires.

    Both this call and the function raise CloudError.
    """
    found = credentials(scope)

    def token() -> str:
        try:
            if not found.valid:
                found.refresh(Request())
        except GoogleAuthError as error:
            raise CloudError(
                f"Google returned no token: {error}; run `gcloud auth application-default login`"
            ) from error
        return str(found.token)

    return token


def emulated(endpoint: str) -> Any:
    """Credentials for an emulator, for Google's client libraries: its token, or anonymous if it has none."""

    def renewed(request: object, scopes: object) -> tuple[str | None, datetime]:
        try:
            token = emulator_token(endpoint)
        except OSError as error:
            raise RefreshError(f"the emulated machine's metadata server returned no token: {error}") from error
        return token, (datetime.now(UTC) + _ASKED_AGAIN_AFTER).replace(tzinfo=None)

    try:
        if emulator_token(endpoint) is None:
            return AnonymousCredentials()
    except OSError:
        pass  # a token is expected; the first call reports why it is not available
    return cast(Any, Credentials)(token=None, refresh_handler=renewed)
