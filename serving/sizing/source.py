"""Reads a model's configuration and tensor list from a folder or bucket. It reads only header bytes of weights."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from serving import weights
from serving.cache.store import ObjectStore, Reader, read_object
from serving.sizing.model import SizingError
from serving.weights import HeaderError, Tensor

_LARGEST_CONFIG: Final = 16 * 1024 * 1024
_LARGEST_INDEX: Final = 64 * 1024 * 1024


def read_config(store: ObjectStore, key: Callable[[str], str]) -> dict[str, Any]:
    """Read config.json. `key` maps a file name to a key of the store. Raises SizingError, OSError."""
    reader = store.connect()
    try:
        return _json(reader, key("config.json"), _LARGEST_CONFIG)
    finally:
        reader.close()


def read_tensors(store: ObjectStore, key: Callable[[str], str]) -> list[Tensor]:
    """Return every tensor of every shard, from the headers only. Raises SizingError, OSError."""
    reader = store.connect()
    try:
        return [tensor for name in _shards(reader, key) for tensor in _header(reader, key(name))]
    finally:
        reader.close()


def _shards(reader: Reader, key: Callable[[str], str]) -> Sequence[str]:
    try:
        index = _json(reader, key("model.safetensors.index.json"), _LARGEST_INDEX)
    except FileNotFoundError:
        return ["model.safetensors"]
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise SizingError(f"{key('model.safetensors.index.json')}: has no weight_map")
    return sorted({str(name) for name in index["weight_map"].values()})


def _header(reader: Reader, key: str) -> Sequence[Tensor]:
    size, version = reader.size_and_version(key)
    try:
        length = weights.header_length(_range(reader, key, 0, min(size, weights.PREFIX), version), size)
        return weights.parse_header(_range(reader, key, weights.PREFIX, length, version), size)
    except HeaderError as error:
        raise SizingError(f"{key}: {error}") from error


def _range(reader: Reader, key: str, start: int, length: int, version: str) -> bytes:
    body = bytearray()
    if length:
        reader.read_range(key, start, length, version, body.extend)
    return bytes(body)


def _json(reader: Reader, key: str, largest: int) -> dict[str, Any]:
    try:
        found = json.loads(read_object(reader, key, largest))
    except (ValueError, RecursionError) as error:
        raise SizingError(f"{key}: {error}") from error
    if not isinstance(found, dict):
        raise SizingError(f"{key}: is not a JSON object")
    return cast("dict[str, Any]", found)
