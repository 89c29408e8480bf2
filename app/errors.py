"""How a use case ends, and the error that it raises."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """How a use case ended. The command line makes an exit code of it."""

    DONE = "done"
    """Done, nothing found."""
    FAILED = "failed"
    """Could not, an outcome failed, or the inventory was partial."""
    WRONG_USE = "wrong use"
    FOUND = "found"
    """Done and found something: a dry plan with actions, a limit exceeded, a check that failed."""


class AppError(Exception):
    """Something that the user can fix. The message names what is wrong, the value and the remedy."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.logged = False
        """Whether a log line has it already."""
