"""Selects the fleets of a use case: fleet documents by URL."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from app.errors import AppError, ErrorCode
from gpufleet.settings.document import DocumentError, FleetDocument, Pool, parse

LARGEST_DOCUMENT = 16 * 1024 * 1024
ENVIRONMENTS = "GPUFLEET_ENVIRONMENT"
"""Variable with the environments whose documents a process may read; unset: any.

`pulumi up` sets it on a control host and on routers.
"""


def load(urls: Sequence[str] | None) -> list[FleetDocument]:
    """The documents of these URLs, else of $GPUFLEET_FLEET. Raises AppError."""
    return [load_one(url) for url in urls_of(urls)]


def load_each(urls: Sequence[str] | None) -> list[FleetDocument | AppError]:
    """Each document, or the error of one that cannot be read, so that one fleet does not block the others.

    Raises AppError when none can be read.
    """
    found: list[FleetDocument | AppError] = []
    for url in urls_of(urls):
        try:
            found.append(load_one(url))
        except AppError as error:
            found.append(error)
    errors = [one for one in found if isinstance(one, AppError)]
    if len(errors) == len(found):
        raise errors[0]
    return found


def urls_of(urls: Sequence[str] | None) -> list[str]:
    """The given URLs, else those of $GPUFLEET_FLEET. Raises AppError."""
    chosen = list(urls or []) or [u for u in os.environ.get("GPUFLEET_FLEET", "").split() if u]
    if not chosen:
        raise AppError(
            "no fleet is selected: set --fleet URL or GPUFLEET_FLEET (`pulumi stack output fleet_url` prints it)",
            ErrorCode.WRONG_USE,
        )
    return chosen


def one_url(urls: Sequence[str] | None, who: str) -> str:
    """The single URL that is given. `who` starts the message, as in "a router serves". Raises AppError for none or
    several.
    """
    chosen = list(urls or []) or os.environ.get("GPUFLEET_FLEET", "").split()
    if len(chosen) != 1:
        raise AppError(
            f"{who} one fleet, got {len(chosen)}: set one with --fleet URL or GPUFLEET_FLEET", ErrorCode.WRONG_USE
        )
    return chosen[0]


def load_only(urls: Sequence[str] | None, why: str) -> FleetDocument:
    """The single document that is given. Raises AppError with the message `why` if there are several."""
    documents = load(urls)
    if len(documents) != 1:
        raise AppError(why, ErrorCode.WRONG_USE)
    return documents[0]


def load_one(url: str) -> FleetDocument:
    """Read and check one document. Raises AppError that names the URL."""
    return parse_own(_read(url), url)


def parse_own(text: str | bytes, source: str) -> FleetDocument:
    """A document of an environment that this process may read. Raises AppError that names the source.

    The author of a document may be less trusted than its reader. A document that names another environment, with that
    environment's secrets and groups, must not use the rights of this machine.
    """
    try:
        document = parse(text, source)
    except DocumentError as error:
        raise AppError(str(error)) from error
    own = os.environ.get(ENVIRONMENTS, "").split()
    if own and document.environment not in own:
        raise AppError(
            f"{source}: environment: is {document.environment!r}, but {ENVIRONMENTS} of this process is "
            f"{' '.join(own)!r}: use that environment's document"
        )
    return document


def split_url(url: str) -> SplitResult:
    """The parts of a URL that a user gave. Raises AppError."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise AppError(f"{url}: is not a URL: {error}", ErrorCode.WRONG_USE) from error


def _read(url: str) -> bytes:
    if not url.strip():
        raise AppError("--fleet: expected a file or a URL of a fleet document, got ''", ErrorCode.WRONG_USE)
    parts = split_url(url)
    if parts.scheme in ("", "file"):
        path = Path(parts.path if parts.scheme else url)
        try:
            if path.stat().st_size > LARGEST_DOCUMENT:
                raise AppError(f"{url}: is larger than 16 MiB, so it is not a fleet document")
            return path.read_bytes()
        except OSError as error:
            raise AppError(f"{url}: {error.strerror or error}") from error
    if parts.scheme in {"s3", "gs"} and not parts.netloc:
        raise AppError(f"{url}: the bucket is missing; write {parts.scheme}://BUCKET/KEY", ErrorCode.WRONG_USE)
    if parts.scheme == "s3":
        from gpufleet.clouds.aws.objects import read_object
    elif parts.scheme == "gs":
        from gpufleet.clouds.gcp.objects import read_object
    else:
        raise AppError(
            f"{url}: the scheme {parts.scheme!r} is not supported; use file://, s3:// or gs://", ErrorCode.WRONG_USE
        )
    try:
        return read_object(parts.netloc, parts.path.lstrip("/"))
    except OSError as error:
        raise AppError(f"{url}: {error}") from error


def pool_of(documents: list[FleetDocument], name: str) -> tuple[FleetDocument, Pool]:
    """The pool of that name, and its fleet. Raises AppError."""
    for document in documents:
        for pool in document.pools:
            if pool.name == name:
                return document, pool
    known = ", ".join(pool.name for document in documents for pool in document.pools)
    raise AppError(f"no pool {name!r}; pools: {known or 'none'}", ErrorCode.WRONG_USE)
