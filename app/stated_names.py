"""Checks names that a user states, before any call to a cloud and before a file is written."""

import re
from typing import Final

from app.errors import AppError, ErrorCode
from gpufleet.domain import regions
from gpufleet.domain.model import Cloud
from gpufleet.settings import ENVIRONMENT_NAME

_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ACCOUNT: Final = re.compile(r"\d{12}")
_PROJECT: Final = re.compile(
    r"(([a-z0-9-]{1,63}\.)*[a-z][a-z0-9-]{0,62}:)?(\d{1,19}|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)"
)
"""As Compute Engine states it: the id of a project, with its domain or without, or its number."""


def check_environment(name: str, option: str = "") -> None:
    """Raise AppError for a name that settings refuse."""
    if not re.fullmatch(ENVIRONMENT_NAME, name):
        raise _wrong(
            option or "ENVIRONMENT",
            f"at most 16 lowercase letters, digits and hyphens, with a letter first and no hyphen last; got {name!r}",
        )


def check_model(name: str) -> str:
    """Return a model's name that is safe as a folder and in a command line. Raises AppError for another one."""
    if not _MODEL.fullmatch(name):
        raise _wrong(
            "--name",
            f"up to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit, got {name!r}",
        )
    return name


def check_region(cloud: Cloud, name: str) -> None:
    """Raise AppError for a region that the cloud does not have."""
    if not name:
        raise _wrong("--region", "the name of a region; got ''")
    if name not in regions.REGIONS[cloud]:
        hint = regions.hint(cloud, name)
        raise AppError(f"--region: {name!r} is not a known region of {cloud}; {hint}", ErrorCode.WRONG_USE)


def check_account(name: str, option: str = "--account") -> None:
    """Raise AppError for a name that no AWS account has."""
    if not _ACCOUNT.fullmatch(name):
        raise _wrong(option, f"an AWS account id of 12 digits; got {name!r}")


def check_project(name: str, option: str = "--project") -> None:
    """Raise AppError for a name that no Google Cloud project has."""
    if not _PROJECT.fullmatch(name):
        raise _wrong(option, f"the id of a Google Cloud project, as `gcloud projects list` shows it; got {name!r}")


def _wrong(option: str, expected: str) -> AppError:
    return AppError(f"{option}: expected {expected}", ErrorCode.WRONG_USE)
