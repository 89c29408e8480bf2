"""Objects in Cloud Storage."""

import os
from pathlib import Path
from typing import Any

from google.api_core.exceptions import GoogleAPIError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage


def read_object(bucket: str, key: str) -> bytes:
    """The bytes of an object. Raises OSError with the cloud's words (FileNotFoundError: no such object)."""
    try:
        return _client().bucket(bucket).blob(key).download_as_bytes()
    except NotFound as error:
        raise FileNotFoundError(f"no such object ({error.code})") from error
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be read: {error}") from error


def write_object(bucket: str, key: str, body: bytes) -> None:
    """Write an object whole. Raises OSError with the cloud's words."""
    try:
        _client().bucket(bucket).blob(key).upload_from_string(body)
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be written: {error}") from error


def write_file(bucket: str, key: str, path: Path) -> None:
    """Write a file as an object. Raises OSError with the cloud's words."""
    try:
        _client().bucket(bucket).blob(key).upload_from_filename(str(path))
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be written: {error}") from error


def _client() -> Any:
    # The standard variable of Google's own emulators; a real bucket is never read without credentials.
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return storage.Client(project="local", credentials=AnonymousCredentials())
    return storage.Client()
