"""Parses listen addresses of the command line."""

from typing import Final

from app.errors import AppError, ErrorCode

_LAST_PORT: Final = 65_535


def host_and_port(option: str, text: str, example: str) -> tuple[str, int]:
    """Parse `HOST:PORT`; port 0 selects a free port. Raises AppError that names the option, its value
    and its form.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > _LAST_PORT:
        raise AppError(
            f"{option} {text}: expected HOST:PORT with a port up to {_LAST_PORT}, for example {example}",
            ErrorCode.WRONG_USE,
        )
    return host, int(port)
