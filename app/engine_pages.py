"""Reads a page of an engine by its contract: what its numbers are, and what they prove."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from app.errors import AppError, ErrorCode
from serving.engines import CONTRACTS, contract_of
from serving.engines.contract import Contract
from serving.engines.reading import read, unknown
from serving.exposition import Sample, parse
from serving.releases import Version

MAX_PAGE_BYTES: Final = 32 << 20
"""Largest page that is read, in bytes."""
_LIMIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReport:
    """What a page reports and proves."""

    contract: Contract
    version: str | None
    values: Mapping[str, float]
    """By canonical metric: gauges and counters that the page reports."""
    missing: tuple[str, ...]
    """Names that the evidence needs and the page lacks."""
    without_tokens: tuple[str, ...]
    unknown: str | None
    """Why the page proves nothing over the window; None: it can prove that the engine is idle."""


def require_contract(engine: str) -> Contract:
    """Return the contract of an engine by its name. Raises AppError."""
    contract = contract_of(engine)
    if contract is None:
        known = ", ".join(CONTRACTS)
        raise AppError(f"engine {engine!r}: is not one of {known}; write one of them", ErrorCode.WRONG_USE)
    return contract


def check(engine: str, version: str | None, place: str, window: timedelta) -> PageReport:
    """Read the page at a path or an http URL. Raises AppError."""
    contract = require_contract(engine)
    if version is not None:
        _check_version(version)
    found = read(contract, contract.release(version), samples_of(place))
    return PageReport(
        contract=contract,
        version=version,
        values={metric.name: value for metric, value in sorted(found.values.items(), key=lambda pair: pair[0].name)},
        missing=found.missing,
        without_tokens=found.without_tokens,
        unknown=unknown(contract, version, found.missing, window),
    )


def samples_of(place: str) -> tuple[Sample, ...]:
    """Return the samples of the page at a path or an http URL. Raises AppError."""
    text = _text(place)
    try:
        found = tuple(parse(text))
    except ValueError as error:
        raise AppError(f"{place}: is not a metrics page: {error}; give a page in Prometheus's text format") from error
    if found and not text.endswith("\n"):
        # its last number may have lost digits: 0.87 would be 0
        raise AppError(f"{place}: is incomplete: its last line does not end with a newline; read the page again")
    return found


def _check_version(version: str) -> None:
    try:
        Version.parse(version)
    except ValueError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error


def _text(place: str) -> str:
    try:
        if place.startswith(("http://", "https://")):
            with urllib.request.urlopen(place, timeout=_LIMIT_S) as answer:  # noqa: S310 - http and https only
                body = answer.read(MAX_PAGE_BYTES + 1)
                length = answer.headers.get("Content-Length", "")
            if length.isdigit() and len(body) < min(int(length), MAX_PAGE_BYTES):
                raise AppError(f"{place}: is incomplete: {len(body)} of {length} bytes came; read the page again")
        else:
            with Path(place).open("rb") as file:
                body = file.read(MAX_PAGE_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise AppError(f"{place}: answered with status {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise AppError(f"{place}: cannot be read: {error.reason}") from error
    except http.client.HTTPException as error:
        raise AppError(
            f"{place}: cannot be read: its answer is not valid or not complete; read the page again"
        ) from error
    except OSError as error:
        raise AppError(f"{place}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise AppError(f"{place}: is not an address or path: {error}", ErrorCode.WRONG_USE) from error
    if len(body) > MAX_PAGE_BYTES:
        raise AppError(f"{place}: is larger than {MAX_PAGE_BYTES >> 20} MiB; give one metrics page")
    return body.decode("utf-8", "replace")
