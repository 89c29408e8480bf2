"""Tests of the licence check: licences in metadata, allowed expressions, and coverage of every locked package."""

from email.message import Message
from pathlib import Path

import pytest

from scripts import licences
from scripts.licences import Allowed, ListError, findings, is_allowed, read_list, stated

LIST = Allowed(frozenset({"MIT", "Apache-2.0"}), {"lib": "LGPL-3.0-only"}, {"silent": "MIT"})


def metadata(*fields: tuple[str, str]) -> Message:
    made = Message()
    for name, value in fields:
        made[name] = value
    return made


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        pytest.param([("License-Expression", "MIT OR Apache-2.0")], "MIT OR Apache-2.0", id="PEP 639"),
        pytest.param(
            [("License-Expression", "MIT"), ("Classifier", "License :: OSI Approved :: BSD License")],
            "MIT",
            id="the expression before classifiers",
        ),
        pytest.param([("License", "Apache-2.0")], "Apache-2.0", id="a field that is SPDX"),
        pytest.param([("License", "BSD")], "", id="a field that is not SPDX"),
        pytest.param([("License", "Copyright\nall the text of a licence")], "", id="a field that is a whole text"),
        pytest.param([("Classifier", "License :: OSI Approved :: MIT License")], "MIT", id="classifier"),
        pytest.param(
            [
                ("Classifier", "License :: OSI Approved :: MIT License"),
                ("Classifier", "License :: OSI Approved :: Apache Software License"),
            ],
            "MIT AND Apache-2.0",
            id="two classifiers are not a choice",
        ),
        pytest.param([("Classifier", "License :: Other/Proprietary License")], "", id="a classifier of no licence"),
        pytest.param(
            [("Classifier", "License :: OSI Approved :: GNU General Public License v3 (GPLv3)")],
            "",
            id="a classifier that is not in the table",
        ),
    ],
)
def test_the_licence_that_metadata_state(fields: list[tuple[str, str]], licence: str) -> None:
    assert stated(metadata(*fields)) == licence


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("GPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("(MIT OR GPL-3.0-only) AND Apache-2.0", True),
    ],
)
def test_one_side_of_or_and_both_of_and_must_be_allowed(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, LIST.licences) is allowed


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        pytest.param("good", {"good": "MIT"}, None, id="allowed"),
        pytest.param("silent", {"silent": ""}, None, id="declared"),
        pytest.param("lib", {"lib": "LGPL-3.0-only"}, None, id="an exception"),
        pytest.param(
            "lib", {"lib": "AGPL-3.0-only"}, "lib 1.0: AGPL-3.0-only is not allowed: use another", id="more"
        ),
        pytest.param("other", {"other": "LGPL-3.0-only"}, "is not allowed", id="the exception of another package"),
        pytest.param(
            "quiet", {"quiet": ""}, "quiet 1.0: unknown licence (its metadata names no licence)", id="unknown"
        ),
        pytest.param("absent", {}, "absent 1.0: unknown licence (it is not installed here)", id="not installed"),
    ],
)
def test_each_finding_names_package_licence_and_remedy(name: str, found: dict[str, str], message: str | None) -> None:
    packages = {name: "1.0", "lib": "1.0", "silent": "1.0"}
    lines = findings(packages, {"lib": "LGPL-3.0-only", **found}, LIST)
    assert len(lines) == (0 if message is None else 1)
    assert message is None or message in lines[0]


def test_an_entry_for_a_package_that_is_not_locked_is_reported() -> None:
    assert "lib: is in scripts/licences.toml and not in uv.lock" in findings({"silent": "1"}, {}, LIST)[0]


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text('allowed = []\n[exceptions.a]\nlicence = "MIT"\nreason = " "\n[declared]\n')
    with pytest.raises(ListError, match="exceptions.a: has no reason"):
        read_list(path)


def test_every_locked_package_has_a_licence_that_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert licences.main([]) == 0, capsys.readouterr().out
