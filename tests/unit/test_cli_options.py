"""Options that several commands have, and words of others in what they print."""

import pytest
from rich.table import Table

from cli.addresses import host_and_port
from cli.output import STDOUT, Exit, UserError


@pytest.mark.parametrize(
    ("text", "found"), [("127.0.0.1:9600", ("127.0.0.1", 9600)), ("::1:0", ("::1", 0)), ("h:65535", ("h", 65535))]
)
def test_an_address_is_host_and_port(text: str, found: tuple[str, int]) -> None:
    assert host_and_port("--listen", text, "h:1") == found


@pytest.mark.parametrize(
    "text", ["", "9600", ":9600", "h:", "h:x", "h:65536", "h:99999", "h:-1", "h:²", "h:" + "9" * 5000]
)
def test_an_address_that_is_none_is_wrong_use(text: str) -> None:
    with pytest.raises(UserError, match="--listen .*write HOST:PORT with a port up to 65535, as h:1") as caught:
        host_and_port("--listen", text, "h:1")
    assert caught.value.code is Exit.WRONG_USE


def test_square_brackets_of_others_are_no_markup() -> None:
    table = Table(box=None)
    table.add_column("detail")
    table.add_row("no [spot] left [/x]")
    with STDOUT.capture() as written:
        STDOUT.print("http://[fd00::1]:9090: refused [/x]", highlight=False)
        STDOUT.print(table)
    assert "http://[fd00::1]:9090: refused [/x]" in written.get()
    assert "no [spot] left [/x]" in written.get()
