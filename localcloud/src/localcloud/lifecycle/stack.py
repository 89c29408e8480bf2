"""Pulumi's side of the embedded environment: the local provider as a plugin, and the stack."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from localcloud.lifecycle.environment import marked
from localcloud.lifecycle.selected_cloud import chosen, stack_of
from localcloud.lifecycle.waiting import LocalError
from localcloud.provider.install import plugin_dir, plugin_version

LIMIT_S: Final = 120.0


def prepare(folders: Folders, pulumi: Path, environment: Mapping[str, str]) -> None:
    """Install the provider (when its code has changed) and create the stack. Idempotent. Raises LocalError."""
    folders.pulumi_home.mkdir(parents=True, exist_ok=True)
    folders.pulumi_state.mkdir(parents=True, exist_ok=True)
    whole = marked(environment, folders)
    name = chosen(folders).value
    stamp, wanted = folders.pulumi_home / f"plugin-{name}.stamp", _digest(folders)
    version = plugin_version(name)
    installed = folders.pulumi_home / "plugins" / f"resource-{name}-v{version}" / f"pulumi-resource-{name}"
    if not installed.is_file() or not stamp.is_file() or stamp.read_text() != wanted:
        folder = plugin_dir(folders.local / "pulumi" / f"plugin-{name}", str(folders.python), name=name)
        install = ["plugin", "install", "resource", name, version, "--reinstall", "-f", str(folder)]
        _run(folders, pulumi, install, whole)
        stamp.write_text(wanted)
    stack = stack_of(chosen(folders))
    known = folders.pulumi_state / ".pulumi" / "stacks" / "gpu-fleet" / f"{stack}.json"
    _run(folders, pulumi, ["stack", "select" if known.is_file() else "init", stack], whole)


def _run(folders: Folders, pulumi: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    shown = f"pulumi {' '.join(arguments[:3])}"
    try:
        done = subprocess.run(
            [pulumi, "--non-interactive", *arguments],
            cwd=folders.root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"`{shown}` took longer than {LIMIT_S:.0f} s and was ended; try again") from error
    if done.returncode:
        raise LocalError(f"`{shown}` failed: {(done.stderr or done.stdout).strip()}")


def _digest(folders: Folders) -> str:
    """Of the launcher's interpreter and the provider's code: the plugin holds what that code generates."""
    digest = hashlib.sha256(str(folders.python).encode())
    for file in sorted((folders.root / "localcloud" / "provider").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
