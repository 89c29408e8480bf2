"""The result codes of a use case, and the error that it raises."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """How a use case ended. The command line converts it to an exit code."""

    DONE = "done"
    """Done, and nothing found."""
    FAILED = "failed"
    """The use case failed, an outcome failed, or the inventory was incomplete."""
    WRONG_USE = "wrong use"
    FOUND = "found"
    """Done, and something found: a dry run with actions, an exceeded limit, a failed check."""


class AppError(Exception):
    """An error that the user can fix. The message names the problem, the value and the remedy."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.logged = False
        """Whether a log line already describes this error."""
