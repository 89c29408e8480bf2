"""Google's credentials of whoever runs this: the one door to google-auth, whose own types stop half-way."""

from collections.abc import Callable
from typing import Any, cast

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request

from gpufleet.domain.activity import CloudError


def credentials(scope: str) -> Any:
    """Those of the environment, for google's own clients. Raises CloudError that says how to log in."""
    try:
        return cast(Any, google.auth).default(scopes=[scope])[0]
    except GoogleAuthError as error:
        words = f"no Google credentials: {error}; run `gcloud auth application-default login`"
        raise CloudError(words) from error


def tokens(scope: str) -> Callable[[], str]:
    """Gives a token that is valid now, a new one where the last has ended; raises CloudError, as this does."""
    found = credentials(scope)

    def token() -> str:
        try:
            if not found.valid:
                found.refresh(Request())
        except GoogleAuthError as error:
            raise CloudError(f"Google gave no token: {error}; run `gcloud auth application-default login`") from error
        return str(found.token)

    return token
