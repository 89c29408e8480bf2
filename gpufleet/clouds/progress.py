"""How work in a thread shows that it makes progress."""

from typing import Protocol


class Touch(Protocol):
    """Called when work makes progress."""

    def __call__(self, *, waits: bool = True) -> None:
        """`waits`: the work waits for an answer until the next call. Otherwise it computes, with no time limit."""
        ...
