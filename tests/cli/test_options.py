"""Options that several commands share, and untrusted text in their output."""

from datetime import UTC, datetime

import pytest
from rich.table import Table

from app.errors import AppError, ErrorCode
from cli.addresses import host_and_port
from cli.output import STDOUT
from cli.windows import parse_window


@pytest.mark.parametrize(
    ("text", "found"), [("127.0.0.1:9600", ("127.0.0.1", 9600)), ("::1:0", ("::1", 0)), ("h:65535", ("h", 65535))]
)
def test_an_address_is_host_and_port(text: str, found: tuple[str, int]) -> None:
    assert host_and_port("--listen", text, "h:1") == found


@pytest.mark.parametrize(
    "text", ["", "9600", ":9600", "h:", "h:x", "h:65536", "h:99999", "h:-1", "h:²", "h:" + "9" * 5000]
)
def test_invalid_address_is_wrong_use(text: str) -> None:
    with pytest.raises(
        AppError, match="--listen .*expected HOST:PORT with a port up to 65535, for example h:1"
    ) as caught:
        host_and_port("--listen", text, "h:1")
    assert caught.value.code is ErrorCode.WRONG_USE


NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


@pytest.mark.parametrize(("since", "until"), [("2026-11-23", "2026-11-24"), ("2026-11-22T08:01", "2027-01-01")])
def test_window_in_the_future_is_an_error(since: str, until: str) -> None:
    with pytest.raises(AppError, match=rf"--since '{since}' .* is in the future") as caught:
        parse_window(since, until, "UTC", NOW)
    assert caught.value.code is ErrorCode.WRONG_USE
    assert parse_window("2026-11-01", until, "UTC", NOW).until > NOW  # the end of a month may be in the future


def test_square_brackets_in_untrusted_text_are_not_markup() -> None:
    table = Table(box=None)
    table.add_column("detail")
    table.add_row("no [spot] left [/x]")
    with STDOUT.capture() as written:
        STDOUT.print("http://[fd00::1]:9090: refused [/x]", highlight=False)
        STDOUT.print(table)
    assert "http://[fd00::1]:9090: refused [/x]" in written.get()
    assert "no [spot] left [/x]" in written.get()
