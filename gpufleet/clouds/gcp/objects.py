"""Objects in Cloud Storage."""

import os
from pathlib import Path

from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Client

from gpufleet.clouds.gcp.login import emulated


def read_object(bucket: str, key: str) -> bytes:
    """Read an object. Raises OSError with Google's message.

    FileNotFoundError: no such object. PermissionError: no permission to read it, or it does not exist and there is no
    permission to list objects.
    """
    try:
        return _client().bucket(bucket).blob(key).download_as_bytes()
    except NotFound as error:
        raise FileNotFoundError(f"no such object ({error.code})") from error
    except Forbidden as error:
        raise PermissionError(f"Cloud Storage refused: {error}") from error
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be read: {error}") from error


def write_object(bucket: str, key: str, body: bytes) -> None:
    """Write a complete object. Raises OSError with Google's message."""
    try:
        _client().bucket(bucket).blob(key).upload_from_string(body)
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be written: {error}") from error


def write_file(bucket: str, key: str, path: Path) -> None:
    """Upload a file as an object. Raises OSError with Google's message."""
    try:
        _client().bucket(bucket).blob(key).upload_from_filename(str(path))
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be written: {error}") from error


def list_objects(bucket: str, prefix: str, *, folders: bool = False) -> list[str]:
    """Names of all objects that begin with `prefix`. With `folders`: names of the folders directly below it.

    Raises OSError with Google's message.
    """
    try:
        found = _client().list_blobs(bucket, prefix=prefix, delimiter="/" if folders else None)
        names = [blob.name for blob in found]
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(f"Cloud Storage could not be listed: {error}") from error
    return sorted(one.rstrip("/").rpartition("/")[2] for one in found.prefixes) if folders else sorted(names)


def _client() -> Client:
    # the standard variable for storage emulators; access to a real bucket always uses credentials
    if endpoint := os.environ.get("STORAGE_EMULATOR_HOST"):
        return Client(project="local", credentials=emulated(endpoint))
    return Client()
