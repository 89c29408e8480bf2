"""Finds secrets of the embedded environment in places where they must not be."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from localcloud.gcp.locations import PROJECT
from localcloud.lifecycle import seed, seed_google
from localcloud.lifecycle.environment import token_of
from localcloud.lifecycle.selected_cloud import chosen

from gpufleet.clouds.gcp.signed import secret
from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import Folders, find_folders
from scripts.demo import observe

MAX_FILE_BYTES: Final = 64 * 1024 * 1024


def order_key() -> str:
    """A line of the key that signs orders to agents: the one secret here that is worth the name."""
    folders = find_folders(os.environ)
    if chosen(folders) is Cloud.GCP:
        pem = secret(f"projects/{PROJECT}/secrets/{seed_google.ORDER_KEY}", token_of(folders))
    else:
        pem = seed.secret(seed.ORDER_KEY, token_of(folders))
    # one line: in JSON the line ends of the whole would be written otherwise
    return pem.splitlines()[2]


def places_with(secret: str, folders: Folders) -> list[str]:
    """Files below `.local` (logs, Pulumi's state, machines with their user data, the ledger) and Slack messages
    that hold a secret in clear."""
    found = [str(file.relative_to(folders.root)) for file in _files(folders.local) if secret.encode() in _read(file)]
    return found + [f"Slack {one['ts']}" for one in observe.slack_messages() if secret in str(one)]


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.stat().st_size <= MAX_FILE_BYTES else b""
    except OSError:  # gone meanwhile
        return b""
