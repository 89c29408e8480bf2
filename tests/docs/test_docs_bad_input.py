"""The security page names an existing test for each bad input."""

import re

import pytest

from gpufleet.toolchain.folders import ROOT

TABLE = (ROOT / "docs" / "threat-model.md").read_text().partition("## Bad input")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("|")][2:]


def test_each_bad_input_names_its_test() -> None:
    assert len(ROWS) >= 14
    assert [row for row in ROWS if "::test_" not in row] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/\S+\.py::\w+)`", TABLE))))
def test_test_named_on_the_page_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), name
