"""Compares the packages of uv.lock with a local database of known vulnerabilities.

The database is a zip of OSV records in the format of https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
(advisories of GitHub and PyPA). `python -m scripts.audit [--database ZIP] [--required]` exits with 1 if a package has
a known vulnerability. Without a database it prints a message and exits with 0, or with 2 if a database is required
(CI).
"""

import argparse
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

# installed with pytest
from packaging.version import InvalidVersion, Version

DATABASE: Final = Path(".local/advisories/pypi.zip")
LOCK: Final = Path("uv.lock")
ACCEPTED: Final[Mapping[str, str]] = {}
"""Identifiers of vulnerabilities that do not concern this project, with the reason."""


def locked(text: str) -> dict[str, set[str]]:
    """Return the versions of each package in a uv.lock. Packages that come from no registry are our own and are
    omitted.
    """
    found: dict[str, set[str]] = {}
    for package in tomllib.loads(text)["package"]:
        if "registry" in package.get("source", {}):
            found.setdefault(normalized(package["name"]), set()).add(package["version"])
    return found


def normalized(name: str) -> str:
    """Return a name as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def records(database: Path) -> Iterator[dict[str, Any]]:
    """Yield every record. Raises OSError or ValueError if the file is not such a database."""
    try:
        with zipfile.ZipFile(database) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield json.loads(archive.read(name))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{database}: expected a zip of OSV records: {error}") from error


def findings(packages: Mapping[str, set[str]], known: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each vulnerability of a package: name, version, identifiers, fixed version, summary."""
    found: list[str] = []
    for record in known:
        names = {str(record["id"]), *record.get("aliases", ())}
        if "withdrawn" in record or names & ACCEPTED.keys():
            continue
        for affected in record.get("affected", ()):
            package = affected.get("package", {})
            if package.get("ecosystem") != "PyPI":
                continue
            name = normalized(str(package.get("name", "")))
            found += [
                f"{name} {version}: {', '.join(sorted(names))}; fixed in {_fixed(affected)}: {_summary(record)}"
                for version in sorted(packages.get(name, ()))
                if is_affected(version, affected)
            ]
    return sorted(set(found))


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Return whether a version is listed or within a range."""
    if version in affected.get("versions", ()):
        return True
    return any(
        _in_range(Version(version), part.get("events", ()))
        for part in affected.get("ranges", ())
        if part.get("type") == "ECOSYSTEM"
    )


def _in_range(version: Version, events: Iterable[Mapping[str, str]]) -> bool:
    inside = False
    for kind, text in sorted(
        ((kind, text) for event in events for kind, text in event.items()), key=lambda one: _order(one[1])
    ):
        at = _order(text)
        match kind:
            case "introduced" if version >= at:
                inside = True
            case "fixed" if version >= at:
                inside = False
            case "last_affected" if version > at:
                inside = False
            case _:
                pass
    return inside


def _order(text: str) -> Version:
    """Convert a version for comparison. "0" sorts before every version. An invalid version sorts last, so that it
    ends no range.
    """
    try:
        return Version("0.dev0" if text == "0" else text)
    except InvalidVersion:
        return Version("99999999")


def _fixed(affected: Mapping[str, Any]) -> str:
    events = [event for part in affected.get("ranges", ()) for event in part.get("events", ())]
    return ", ".join(dict.fromkeys(event["fixed"] for event in events if "fixed" in event)) or "no version yet"


def _summary(record: Mapping[str, Any]) -> str:
    text = str(record.get("summary") or record.get("details") or "no summary")
    return " ".join(text.split())[:120]


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Compare uv.lock with a database of known vulnerabilities.")
    parser.add_argument("--database", type=Path, default=DATABASE)
    parser.add_argument("--lock", type=Path, default=LOCK)
    parser.add_argument("--required", action="store_true", help="fail where there is no database")
    given = parser.parse_args(arguments)
    if not given.database.exists():
        result = "failed" if given.required else "skipped"
        sys.stderr.write(
            f"audit: {result}: there is no database at {given.database} (`make advisories` fetches it)\n"
        )
        return 2 if given.required else 0
    packages = locked(given.lock.read_text("utf-8"))
    try:
        known = list(records(given.database))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"audit: failed: {error}\n")
        return 2
    if not known:
        sys.stderr.write(f"audit: failed: {given.database} holds no record\n")
        return 2
    found = findings(packages, known)
    sys.stdout.writelines(f"{line}\n" for line in found)
    at = datetime.fromtimestamp(given.database.stat().st_mtime, UTC)
    sys.stderr.write(
        f"audit: {len(found)} known vulnerabilities in {len(packages)} packages, "
        f"by {len(known)} records of {at:%Y-%m-%d}\n"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
