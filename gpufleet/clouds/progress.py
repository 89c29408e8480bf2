"""How work in a thread shows that it makes progress."""

from typing import Protocol


class Touch(Protocol):
    """Called when work makes progress."""

    def __call__(self, *, waits: bool = True) -> None:
        """`waits`: from now on the work waits for an answer. Otherwise it computes, and its time has no limit."""
        ...
