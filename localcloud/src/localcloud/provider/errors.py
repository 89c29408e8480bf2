"""Errors of the provider."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An invalid input: its path, and the reason with what to do."""

    path: str
    reason: str


class ProviderError(Exception):
    """A request that failed; the message is shown to the user."""


class NotReadyError(Exception):
    """The resource exists, but did not reach the requested state in time; it stays in the stack's state."""


class CancelledError(Exception):
    """The user stopped the run while the provider was waiting for the cloud."""
