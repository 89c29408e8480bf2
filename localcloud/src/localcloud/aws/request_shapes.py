"""Types for the parts of botocore's request model that the emulated AWS reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class RequestShape(Protocol):
    """The type of a field. Read only the attributes that its kind has."""

    @property
    def type_name(self) -> str:
        """Structure, list, map, string, boolean, integer, …"""
        ...

    @property
    def members(self) -> Mapping[str, RequestShape]:
        """The fields of a structure by name."""
        ...

    @property
    def member(self) -> RequestShape:
        """The shape of a list's items."""
        ...

    @property
    def value(self) -> RequestShape:
        """The shape of a map's values."""
        ...


class Operation(Protocol):
    """One operation of a service."""

    @property
    def input_shape(self) -> RequestShape | None:
        """The shape of its input; None without input."""
        ...
