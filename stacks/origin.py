"""Identifies the program's source. The result depends only on the tree, so a preview without changes shows no
difference.
"""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from gpufleet.settings.document import Origin


def origin(root: Path, project: str, stack: str) -> Origin:
    """Return the commit and its time. Outside a repository: `unversioned` and the modification time of the project
    file.
    """
    commit = _commit(root)
    if commit is None:
        written = datetime.fromtimestamp(int((root / "Pulumi.yaml").stat().st_mtime), UTC)
        return Origin(project=project, stack=stack, revision="unversioned", at=written)
    revision, at = commit
    return Origin(project=project, stack=stack, revision=revision, at=at)


def _commit(root: Path) -> tuple[str, datetime] | None:
    command = ["git", "-C", str(root), "log", "-1", "--format=%H %cI"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return (output[0], datetime.fromisoformat(output[1]).astimezone(UTC)) if len(output) == 2 else None
