"""What travels between engine and provider: structs, unknown values, secrets and assets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format, struct_pb2

from gpufleet.domain.parsed import is_list
from localcloud.documents import is_document

Properties = dict[str, Any]

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Stands for a value that a preview cannot know; may appear anywhere inside inputs."""

_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
_ASSET = "c44067f5952c0a294b673a41bacd8c17"
_ARCHIVE = "0def7320c3a5731c473e5ecbe6d01bc7"


def from_struct(struct: struct_pb2.Struct) -> Properties:
    """A struct as plain Python: whole numbers become integers, secrets are opened, nulls are left out."""
    return {k: _plain(v) for k, v in json_format.MessageToDict(struct).items() if v is not None}


def to_struct(properties: Mapping[str, Any]) -> struct_pb2.Struct:
    """Plain Python as a struct."""
    message = struct_pb2.Struct()
    json_format.ParseDict(dict(properties), message)
    return message


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if is_list(value):
        return [_plain(v) for v in value]
    if is_document(value):
        if value.get(_SIGNATURE) == _SECRET:
            return _plain(value.get("value"))
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return value


def is_asset(value: Any) -> bool:
    """Whether `value` is a file or string asset, as the engine writes it."""
    return is_document(value) and value.get(_SIGNATURE) in {_ASSET, _ARCHIVE}


def asset_bytes(asset: Mapping[str, Any], root: Path) -> bytes:
    """The bytes of an asset; relative paths start at `root`, the program's directory.

    Raises:
        ValueError: an archive, or an asset by URL: the local provider takes files and strings alone.
    """
    if asset.get(_SIGNATURE) != _ASSET:
        raise ValueError("source: archives are not modelled by the local provider; use FileAsset or StringAsset")
    if text := asset.get("text"):
        return str(text).encode()
    if path := asset.get("path"):
        return (root / str(path)).read_bytes()
    if asset.get("uri"):
        raise ValueError("source: remote assets are not modelled by the local provider; use FileAsset or StringAsset")
    return b""


def decode_base64(value: str, path: str) -> bytes:
    """The bytes of a base64 text; raises ValueError that names the property."""
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(f"{path}: not base64 text") from error


def sha1(value: str) -> str:
    """A short stable digest for made-up ids; no secret is protected by it."""
    return hashlib.sha1(value.encode(), usedforsecurity=False).hexdigest()
