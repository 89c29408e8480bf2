"""The security page states the rights of each exporter as its unit has them."""

import re

import pytest

from gpufleet.toolchain.folders import ROOT
from serving.accelerators import CONTRACTS
from serving.exporter_units import exporter_unit

PAGE = (ROOT / "docs" / "security.md").read_text()
SECTION = PAGE.partition("## What runs on an instance, and with which rights")[2].partition("\n## ")[0]


@pytest.mark.parametrize("kind", CONTRACTS)
def test_the_page_states_the_rights_of_an_exporter(kind: str) -> None:
    unit = exporter_unit(CONTRACTS[kind].launch, image="exporter", host="10.0.0.1", agent=("agent",))
    (row,) = re.findall(rf"^\| exporter of `{kind}` \|(.+)$", SECTION, re.MULTILINE)
    user, rights, why = (cell.strip() for cell in row.strip("|").split("|"))
    assert (user == "root") is ("--user=0:" in unit)
    assert ("**privileged**" in rights) is ("--privileged" in unit)
    assert set(re.findall(r"CAP_(\w+)", rights)) == set(re.findall(r"--cap-add=(\w+)", unit))
    assert ("metadata" in rights) is bool(getattr(CONTRACTS[kind].launch.exporter, "metadata", False))
    assert why
