"""Tests of `make dist`: its bills of materials are valid, exact, and identical for identical files."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from app import bundles
from gpufleet.toolchain.folders import find_folders
from scripts.dist import WHEEL, DistError, bill, build_wheel, export, packed_in

UV = str(find_folders(os.environ).tools / "uv")
TAG = "cp311-cp311-manylinux_2_28_x86_64"


def file(name: str) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": "0" * 64}]
    return {"type": "distribution", "url": f"https://files.pythonhosted.org/packages/{name}", "hashes": hashes}


def component(name: str, version: str, *files: str) -> dict[str, Any]:
    ref, purl = f"{name}@{version}", f"pkg:pypi/{name}@{version}"
    links = [file(one) for one in files]
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": version,
        "purl": purl,
        "externalReferences": links,
    }


EXPORTED: dict[str, Any] = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "serialNumber": "urn:uuid:e4406988-4391-45a0-b619-afda2be878a6",
    "metadata": {
        "timestamp": "2026-11-25T23:03:40.255881616Z",
        "component": {"type": "library", "bom-ref": "us@1", "name": "gpu-fleet", "version": "1"},
    },
    "components": [
        component("numpy", "2.0", "numpy-2.0.tar.gz", f"numpy-2.0-{TAG}.whl", "numpy-2.0-cp311-cp311-win_amd64.whl"),
        component("numpy", "3.0", "numpy-3.0-cp312-cp312-win_amd64.whl"),
        component("colorama", "1.0", "colorama-1.0-py3-none-any.whl"),
    ],
    "dependencies": [
        {"ref": "us@1", "dependsOn": ["numpy@2.0", "numpy@3.0", "colorama@1.0"]},
        {"ref": "numpy@2.0"},
        {"ref": "colorama@1.0"},
    ],
}


def bundle_with(folder: Path, *packages: str) -> Path:
    archive = folder / "bundle.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for package in packages:
            for name, text in (("METADATA", ""), ("WHEEL", f"Wheel-Version: 1.0\nTag: {TAG}\n")):
                entry = tarfile.TarInfo(f"lib/{package}.dist-info/{name}")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
    return archive


def test_the_bill_of_a_bundle_lists_its_contents_and_their_source_files(tmp_path: Path) -> None:
    archive = bundle_with(tmp_path, "numpy-2.0")
    made = json.loads(bill(EXPORTED, archive, packed_in(archive), 0))
    (one,) = made["components"]
    assert (one["name"], one["version"]) == ("numpy", "2.0")
    assert [link["url"].rsplit("/", 1)[-1] for link in one["externalReferences"]] == [f"numpy-2.0-{TAG}.whl"]
    assert "BSD-3-Clause" in one["licenses"][0]["expression"]
    assert made["dependencies"][0] == {"ref": "us@1", "dependsOn": ["numpy@2.0"]}


def test_a_package_in_the_bundle_that_is_not_locked_is_refused(tmp_path: Path) -> None:
    archive = bundle_with(tmp_path, "numpy-2.0", "stray_one-1.0")
    with pytest.raises(DistError, match=r"stray-one: in bundle.tar.gz, and not in uv\.lock"):
        bill(EXPORTED, archive, packed_in(archive), 0)


def test_the_same_file_gives_the_same_bill(tmp_path: Path) -> None:
    archive = bundle_with(tmp_path, "numpy-2.0")
    other = EXPORTED | {"serialNumber": "urn:uuid:00000000-4391-45a0-b619-afda2be878a6"}
    other["metadata"] = EXPORTED["metadata"] | {"timestamp": "2027-11-25T23:03:40Z"}
    assert bill(EXPORTED, archive, packed_in(archive), 5) == bill(other, archive, packed_in(archive), 5)


@pytest.mark.slow
def test_the_wheel_is_reproducible_and_its_bill_is_valid(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    wheel, again = build_wheel(tmp_path, UV, 1_700_000_000), build_wheel(tmp_path / "again", UV, 1_700_000_000)
    assert wheel.read_bytes() == again.read_bytes()
    text = bill(export(UV, WHEEL), wheel, None, 1_700_000_000)
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    made = json.loads(text)
    refs = [one["bom-ref"] for one in (made["metadata"]["component"], *made["components"])]
    assert len(refs) == len(set(refs)) > 80
    for one in made["components"]:
        assert one["licenses"], one["name"]
        assert all(link["hashes"][0]["alg"] == "SHA-256" for link in one["externalReferences"]), one["name"]


def test_the_bill_of_a_bundle_exports_only_its_packages() -> None:
    made = export(UV, bundles.EXPORT)
    names = {one["name"] for one in made["components"]}
    assert not [name for name in names if name.startswith("pulumi")], "they run where a person runs `pulumi up`"
    assert {"boto3", "matplotlib", "psycopg", "psycopg-binary", "sqlalchemy"} <= names
