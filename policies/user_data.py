"""The rule on secrets in user data. It decodes nested base64, hexadecimal digits, gzip, zlib, bzip2 and xz."""

import base64
import binascii
import bz2
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain.parsed import is_map
from gpufleet.domain.secrets import find_secrets
from policies.context import Context
from policies.resource import GCP_TEMPLATES, RUNS_INSTANCES, Resource
from policies.rule import NOT_SHOWN, PropertyProblem, Rule

_DEEPEST: Final = 4
"""Maximum depth of nested encodings."""
_LARGEST: Final = 4 * 1024 * 1024
"""Maximum size of all unpacked texts in bytes. User data have at most 16 KiB on AWS and 256 KiB on Google Cloud."""
_WRAPPED: Final = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}(?:\r?\n *[A-Za-z0-9+/_-]{4,}={0,2})*")
"""Text that may be base64, also with line breaks."""
_GZIP: Final = b"\x1f\x8b"
_ZLIB: Final = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_BZIP2: Final = b"BZh"
_XZ: Final = b"\xfd7zXZ\x00"
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})+|(?:[0-9A-F]{2})+")


class TooMuchError(ValueError):
    """The text contains more encoded data than the start of an instance needs."""


@dataclass(slots=True)
class _SizeLimit:
    """The number of bytes that may still be unpacked. Without a limit, a few bytes could block this process or hide a
    secret.
    """

    left: int = _LARGEST

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise TooMuchError


def texts_of(text: str) -> Iterator[str]:
    """Yield the text, and every text that is encoded in it. Raises TooMuchError before all texts are checked."""
    yield from _texts(text, _SizeLimit(), 0)


def _texts(text: str, limit: _SizeLimit, depth: int) -> Iterator[str]:
    yield text
    if depth < _DEEPEST:
        for found in _WRAPPED.finditer(text):
            # the following lines may or may not belong to the same encoded text
            for packed in dict.fromkeys((found.group(), *found.group().split())):
                for inner in (_unwrap(packed, limit), _unhex(packed, limit)):
                    if inner is not None:
                        yield from _texts(inner, limit, depth + 1)


def _unhex(text: str, limit: _SizeLimit) -> str | None:
    """Return the decoded hexadecimal digits, or None if the text is not hexadecimal."""
    packed = "".join(text.split())
    return _unpacked(bytes.fromhex(packed), limit) if _HEX.fullmatch(packed) else None


def _unwrap(text: str, limit: _SizeLimit) -> str | None:
    """Return the decoded base64, or None if the text is not base64."""
    packed = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return _unpacked(data, limit)


def _unpacked(data: bytes, limit: _SizeLimit) -> str:
    if data.startswith(_GZIP):
        data = _gunzipped(data, limit)
    elif data.startswith((*_ZLIB, _BZIP2, _XZ)):
        data = _decompressed(data, limit)
    else:
        limit.take(len(data))
    # one character of another encoding must not hide the text around it
    return data.decode("utf-8", "replace")


def _gunzipped(data: bytes, limit: _SizeLimit) -> bytes:
    """Decompress all gzip members in sequence, as a boot reads them. Return the data before the first error."""
    whole = bytearray()
    while data.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        try:
            inner = member.decompress(data, limit.left + 1)
        except zlib.error:
            break
        limit.take(len(inner))
        whole += inner
        data = member.unused_data
    return bytes(whole)


def _decompressed(data: bytes, limit: _SizeLimit) -> bytes:
    """Decompress zlib, bzip2 or xz. Return invalid data unchanged."""
    try:
        if data.startswith(_BZIP2):
            inner = bz2.BZ2Decompressor().decompress(data, limit.left + 1)
        elif data.startswith(_XZ):
            inner = lzma.LZMADecompressor(memlimit=64 * 1024**2).decompress(data, limit.left + 1)
        else:
            inner = zlib.decompressobj().decompress(data, limit.left + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        inner = data
    limit.take(len(inner))
    return inner


def _user_data(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    for key, text in _given(resource):
        if isinstance(text, str):
            kinds: dict[str, None] = {}
            try:
                for inner in texts_of(text):
                    kinds |= dict.fromkeys(find_secrets(inner))
            except TooMuchError:
                message = f"contains more encoded text than the {_LARGEST // 1024**2} MiB that can be checked"
                yield PropertyProblem(path=key, value=NOT_SHOWN, message=message)
            for kind in kinds:
                yield PropertyProblem(path=key, value=NOT_SHOWN, message=f"contains what looks like {kind}")


def _given(resource: Resource) -> Iterator[tuple[str, Any]]:
    if resource.type in RUNS_INSTANCES:
        for key in ("userData", "userDataBase64"):
            yield key, resource.at(key)
    elif resource.type in GCP_TEMPLATES:
        yield "metadataStartupScript", resource.at("metadataStartupScript")
        metadata = resource.at("metadata")
        if is_map(metadata):
            for key, value in metadata.items():
                # find_secrets evaluates a name together with the value next to it
                yield f"metadata.{key}", f"{key}={value}" if isinstance(value, str) else value


RULES: Final = (
    Rule(
        id="no-secret-in-user-data",
        reason="Everyone who may describe an instance can read its user data.",
        remedy="Replace the secret, store it in SSM Parameter Store or Secret Manager, and pass only its name.",
        judges="user data of templates and instances, and metadata on Google Cloud, also encoded and compressed text",
        check_resource=_user_data,
    ),
)
