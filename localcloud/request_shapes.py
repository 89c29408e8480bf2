"""botocore's model of a request, as far as this room reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Shape(Protocol):
    """The type of a field. What a kind does not have may not be asked for.

    Attributes:
        type_name: structure, list, map, string, boolean, integer, …
        members: the fields of a structure by name.
        member: what a list holds.
        value: what a map holds.
    """

    type_name: str
    members: Mapping[str, Shape]
    member: Shape
    value: Shape


class Operation(Protocol):
    """One operation of a service. It has no shape where it takes nothing."""

    input_shape: Shape | None
