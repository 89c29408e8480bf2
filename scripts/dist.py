"""`make dist`: creates the wheel and the control host's bundle in `dist/`, each with its bill of materials (CycloneDX
1.5).

The bundle's bill lists its contents. The wheel's bill lists the packages that uv.lock installs with it and with its
extras. Both name the SHA-256 of each file from uv.lock, and each licence that `scripts.licences` finds. The same
commit gives the same bytes: times are those of the commit, or SOURCE_DATE_EPOCH.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from app import bundles
from app.errors import AppError
from app.stores import digest_of
from gpufleet.toolchain.folders import find_folders
from hosts.control import bundle
from scripts.audit import normalized
from scripts.licences import Allowed, installed, licence_of, read_list

ROOT: Final = Path(__file__).resolve().parents[1]
EPOCH: Final = "SOURCE_DATE_EPOCH"
WHEEL: Final = (*bundles.LOCKED, "--extra", "all")
"""Arguments of uv that export the packages of the wheel's bill."""
LIMIT_S: Final = 300
SUFFIX: Final = ".cdx.json"


class DistError(Exception):
    """A file could not be created. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One package in a bundle, with the tags of the wheel from which it was installed."""

    version: str
    tags: frozenset[str]


def build_wheel(out: Path, uv: str, epoch: int) -> Path:
    """Build the wheel with the build backend of uv.lock, in this environment. Raises DistError."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-wheel-") as folder:
        command = [uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--quiet"]
        _run([*command, "--out-dir", folder], {EPOCH: str(epoch)})
        (made,) = Path(folder).glob("*.whl")
        return Path(shutil.copy2(made, out))


def packed_in(archive: Path) -> Mapping[str, Packed]:
    """Return the packages of a bundle by name. Raises OSError, TarError."""
    versions: dict[str, str] = {}
    tags: dict[str, frozenset[str]] = {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            folder, _, file = entry.name.removeprefix("lib/").partition("/")
            if not folder.endswith(".dist-info") or file not in ("METADATA", "WHEEL"):
                continue
            content = tar.extractfile(entry)
            text = content.read().decode("utf-8", "replace") if content else ""
            name, _, version = folder.removesuffix(".dist-info").partition("-")
            versions[normalized(name)] = version
            if file == "WHEEL":
                lines = (line.partition(": ") for line in text.splitlines())
                tags[normalized(name)] = frozenset(value.strip() for key, _, value in lines if key == "Tag")
    return {name: Packed(version, tags.get(name, frozenset())) for name, version in versions.items()}


def bill(exported: Mapping[str, Any], artefact: Path, packed: Mapping[str, Packed] | None, epoch: int) -> str:
    """Return the bill of materials of one file as JSON. Without `packed`, it lists all packages that uv exported.
    Raises DistError.
    """
    allowed = read_list()
    components = [
        _component(one, packed, allowed) for one in exported["components"] if packed is None or _is_in(packed, one)
    ]
    if missing := (packed or {}).keys() - {normalized(one["name"]) for one in components}:
        raise DistError(f"{', '.join(sorted(missing))}: in {artefact.name}, and not in uv.lock: run `uv lock`")
    digest = digest_of(artefact)
    metadata = exported["metadata"]
    main = metadata["component"] | {"type": "application", "description": artefact.name} | _licences(_license())
    main |= {"purl": f"pkg:pypi/{main['name']}@{main['version']}", "hashes": [{"alg": "SHA-256", "content": digest}]}
    refs = {one["bom-ref"] for one in (main, *components)}
    text = json.dumps(
        {
            **exported,
            "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}").urn,
            "metadata": {
                **metadata,
                "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
                "component": main,
            },
            "components": components,
            "dependencies": [
                {"ref": one["ref"], "dependsOn": [ref for ref in one.get("dependsOn", ()) if ref in refs]}
                for one in exported["dependencies"]
                if one["ref"] in refs
            ],
        },
        indent=1,
    )
    if error := JsonStrictValidator(SchemaVersion.V1_5).validate_str(text):
        raise DistError(f"the bill of materials of {artefact.name} is not valid CycloneDX: {error}")
    return text + "\n"


def _is_in(packed: Mapping[str, Packed], one: Mapping[str, Any]) -> bool:
    found = packed.get(normalized(one["name"]))
    return found is not None and found.version == one["version"]


def _component(one: Mapping[str, Any], packed: Mapping[str, Packed] | None, allowed: Allowed) -> Mapping[str, Any]:
    """Return a component with its licence. If its wheel is known, the component lists only this file."""
    name = normalized(one["name"])
    files = one.get("externalReferences", [])
    mine = [file for file in files if packed and _tags(file["url"]) == packed[name].tags]
    return {**one, **_licences(licence_of(name, installed(), allowed)), "externalReferences": mine or files}


def _licences(expression: str) -> Mapping[str, Any]:
    return {"licenses": [{"expression": expression}]} if expression else {}


def _license() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["license"]


def _tags(url: str) -> frozenset[str]:
    try:
        return frozenset(map(str, parse_wheel_filename(url.rsplit("/", 1)[-1])[3]))
    except InvalidWheelFilename:
        return frozenset({"sdist"})


def export(uv: str, options: Iterable[str]) -> Mapping[str, Any]:
    with_root = [option for option in options if option != "--no-emit-project"]
    return json.loads(_run([uv, *with_root, "--format", "cyclonedx1.5", "--preview-features", "sbom-export"]))


def _epoch() -> int:
    if given := os.environ.get(EPOCH):
        if not given.isascii() or not given.isdigit():
            raise DistError(f"{EPOCH}={given!r}: is not a number of seconds")
        return int(given)
    return int(_run(["git", "log", "-1", "--format=%ct"]))


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DistError(f"{command[0]} {command[1]}: {error}") from error
    if done.returncode != 0:
        raise DistError(f"{command[0]} {command[1]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def make(out: Path, machine: str, python: str) -> list[Path]:
    """Create every file of `dist/` and return the paths. Raises DistError, AppError, OSError."""
    out.mkdir(parents=True, exist_ok=True)
    uv, epoch = str(find_folders(os.environ).tools / "uv"), _epoch()
    wheel = build_wheel(out, uv, epoch)
    packed = bundles.make(out / bundle.ARCHIVE_NAME, machine, python, dependencies=True).path
    files: list[Path] = []
    for artefact, options, inside in ((wheel, WHEEL, None), (packed, bundles.EXPORT, packed_in(packed))):
        place = out / f"{artefact.name}{SUFFIX}"
        place.write_text(bill(export(uv, options), artefact, inside, epoch), "utf-8")
        files += [artefact, place]
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{digest_of(file)}  {file.name}\n" for file in sorted(files)), "utf-8")
    return [*files, sums]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: all files were created. 1: a file could not be created."""
    parser = argparse.ArgumentParser(description="Build the wheel and the bundle, each with its bill of materials.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--machine", default="x86_64", choices=sorted(bundles.PLATFORMS), help="of the control host")
    parser.add_argument("--python", default="3.11", help="of the control host's image")
    given = parser.parse_args(arguments)
    try:
        for file in make(given.out, given.machine, given.python):
            print(f"{file.stat().st_size:>12,}  {file}")
    except (DistError, AppError, OSError, tarfile.TarError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
