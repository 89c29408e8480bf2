"""Errors of the provider, each told to the engine in its own way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One input that the provider refuses: where, and why with a remedy."""

    path: str
    reason: str


class ProviderError(Exception):
    """A request that the provider cannot fulfil; the text goes to the user."""


class NotReadyError(Exception):
    """The resource exists, but did not become what was asked for in time; it stays in the state."""


class CancelledError(Exception):
    """The user stopped the run while the provider was waiting for the cloud."""
