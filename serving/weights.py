"""Reads safetensors headers and checks them against the file size. It needs only the header bytes."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, cast

PREFIX: Final = 8
"""Bytes of the length field before the header."""
LARGEST_HEADER: Final = 100_000_000
"""Maximum header size of the format, in bytes."""

BITS: Final[Mapping[str, int]] = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}


class HeaderError(ValueError):
    """The header does not match its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    """In bytes."""


def header_length(prefix: bytes, file_size: int) -> int:
    """Return the size of the header in bytes, from the first 8 bytes of the file. Raises HeaderError."""
    if len(prefix) < PREFIX:
        raise HeaderError(f"the file has {file_size} bytes; a safetensors file has at least 10")
    length: int = struct.unpack("<Q", prefix[:PREFIX])[0]
    if not 2 <= length <= min(LARGEST_HEADER, file_size - PREFIX):
        raise HeaderError(f"its header has a length of {length} bytes in a file of {file_size}")
    return length


def parse_header(header: bytes, file_size: int) -> tuple[Tensor, ...]:
    """Return the tensors, in the order of their bytes. Raises HeaderError when header and file size do not match.

    The format requires tensors without gaps from byte 0 to the end of the file; this function checks that.
    """
    try:
        raw: Any = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"its header is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise HeaderError("its header is not a JSON object")
    entries = cast("dict[str, Any]", raw)
    found = sorted(
        (_tensor(name, entry) for name, entry in entries.items() if name != "__metadata__"), key=lambda pair: pair[0]
    )
    end = 0
    for begin, tensor in found:
        if begin != end:
            raise HeaderError(f"tensor {tensor.name!r} begins at byte {begin}, the previous one ends at {end}")
        end = begin + tensor.size
    if PREFIX + len(header) + end != file_size:
        raise HeaderError(
            f"its tensors end at byte {PREFIX + len(header) + end}, the file has {file_size}: truncated or changed"
        )
    return tuple(tensor for _, tensor in found)


def _tensor(name: str, entry: Any) -> tuple[int, Tensor]:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise HeaderError(f"tensor {name!r} has no dtype, shape and data_offsets") from error
    if begin < 0 or end < begin or any(n < 0 for n in shape):
        raise HeaderError(f"tensor {name!r} has offsets {begin} to {end} and shape {list(shape)}")
    bits = BITS.get(dtype)
    if bits is not None and -(-prod(shape) * bits // 8) != end - begin:
        raise HeaderError(f"tensor {name!r} of {dtype} {list(shape)} does not fill its {end - begin} bytes")
    return begin, Tensor(name=name, dtype=dtype, shape=shape, size=end - begin)
