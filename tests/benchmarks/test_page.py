from pathlib import Path

from benchmarks import page


def test_a_new_measurement_replaces_only_its_section(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    page.write(path, {"router": "old\n\n### A table\n\n| a |\n", "cache": "cold"})
    page.write(path, {"router": "new"})
    assert page.sections(path.read_text()) == {"cache": "cold\n", "router": "new\n"}
    assert path.read_text().startswith(page.TITLE)
