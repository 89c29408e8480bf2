"""Installs axe-core, which checks the web pages for accessibility. npm fetches it; its SHA-256 is pinned here."""

import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from scripts.setup.running import SetupError, run

VERSION: Final = "4.14.1"
SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""Of `axe.min.js` in that release."""
_MEMBER: Final = "package/axe.min.js"


def place(folders: Folders) -> Path:
    """Return the path of the script."""
    return folders.cache / f"axe-core-{VERSION}" / "axe.min.js"


def install(folders: Folders) -> None:
    """Fetch it into the cache. A failed installation leaves nothing behind. Raises SetupError."""
    npm = shutil.which("npm")
    if npm is None:
        raise SetupError("there is no `npm` on PATH, which fetches axe-core: install Node.js (https://nodejs.org)")
    with tempfile.TemporaryDirectory(prefix=".axe-core-", dir=folders.cache) as folder:
        run(
            [npm, "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", folder],
            doing="fetching axe-core", log=folders.logs / "setup-axe-core.log", limit_s=120, cwd=Path(folder),
        )  # fmt: skip
        script = _script(Path(folder) / f"axe-core-{VERSION}.tgz")
        final = place(folders)
        final.parent.mkdir(parents=True, exist_ok=True)
        half = final.with_suffix(".half")
        half.write_bytes(script)
        half.replace(final)


def _script(archive: Path) -> bytes:
    """The script in the package, if it has the pinned hash. Raises SetupError."""
    try:
        with tarfile.open(archive) as package:
            member = package.extractfile(_MEMBER)
            script = b"" if member is None else member.read()
    except (OSError, KeyError, tarfile.TarError) as error:
        raise SetupError(f"{archive.name}: {_MEMBER} cannot be read: {error}") from error
    found = hashlib.sha256(script).hexdigest()
    if found != SHA256:
        raise SetupError(f"{archive.name}: {_MEMBER} has SHA-256 {found}, expected {SHA256}: it is not used")
    return script
