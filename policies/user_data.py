"""The rule on secrets in what an instance starts with, whatever wraps them: base64, gzip, one in the other."""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

from fleet.parsed import is_map
from fleet.secrets import find_secrets
from policies.context import Context
from policies.resource import GCP_TEMPLATES, RUNS_INSTANCES, Resource
from policies.rule import Rule

_DEEPEST: Final = 4
"""Layers of wrapping that are looked under."""
_LARGEST: Final = 4 * 1024 * 1024
"""Bytes of one unpacked text; user data itself are 16 KiB at most on AWS, 256 KiB on Google Cloud."""
_MOST_WRAPPED: Final = 200
"""Wrapped parts of one text that are looked at."""
_WRAPPED: Final = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}(?:\r?\n *[A-Za-z0-9+/_-]{4,}={0,2})*")
"""What may be base64, also folded into lines."""
_GZIP: Final = b"\x1f\x8b"


def texts_of(text: str, depth: int = 0) -> Iterator[str]:
    """The text, and every text that is wrapped in it."""
    yield text
    if depth < _DEEPEST:
        for number, found in enumerate(_WRAPPED.finditer(text)):
            if number >= _MOST_WRAPPED:
                return
            # what follows on the next lines may belong to it, or not
            for packed in dict.fromkeys((found.group(), *found.group().split())):
                inner = _unwrap(packed)
                if inner is not None:
                    yield from texts_of(inner, depth + 1)


def _unwrap(text: str) -> str | None:
    """What base64 (and gzip) stands for; None where it is neither."""
    packed = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    if data.startswith(_GZIP):
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, _LARGEST)
        except zlib.error:
            return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _user_data(resource: Resource, _: Context) -> Iterator[str]:
    for key, text in _given(resource):
        if isinstance(text, str):
            for kind in dict.fromkeys(kind for inner in texts_of(text) for kind in find_secrets(inner)):
                yield f"{key} holds what looks like {kind}"


def _given(resource: Resource) -> Iterator[tuple[str, Any]]:
    if resource.type in RUNS_INSTANCES:
        for key in ("userData", "userDataBase64"):
            yield key, resource.at(key)
    elif resource.type in GCP_TEMPLATES:
        yield "metadataStartupScript", resource.at("metadataStartupScript")
        metadata = resource.at("metadata")
        if is_map(metadata):
            for key, value in metadata.items():
                # find_secrets judges a name by what stands beside it
                yield f"metadata.{key}", f"{key}={value}" if isinstance(value, str) else value


RULES: Final = (
    Rule(
        id="no-secret-in-user-data",
        reason="Whoever may describe an instance reads its user data.",
        remedy="Put it into SSM Parameter Store or Secret Manager and pass its name; then change the secret.",
        of_one=_user_data,
    ),
)
