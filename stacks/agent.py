"""Builds the node agent's file for the upload."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.domain.files import write_atomically
from serving import agent_archive

ROOT: Final = Path(__file__).resolve().parent.parent
"""Root of the clone, with the sources of the agent and `Pulumi.yaml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    path: Path
    sha256: str


def agent_file(root: Path = ROOT) -> AgentFile:
    """Build the agent into `.local/agents/`. The file is named after its digest. Raises FileNotFoundError if sources
    are missing.
    """
    body = agent_archive.build(root)
    sha256 = hashlib.sha256(body).hexdigest()
    path = root / ".local" / "agents" / f"{sha256}.pyz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, body)
    return AgentFile(path=path, sha256=sha256)
