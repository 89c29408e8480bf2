"""Buckets and objects of the embedded Cloud Storage, and parts of its protocol: preconditions, ranges, uploads."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from gpufleet.http_server import Answer
from localcloud.documents import is_document
from localcloud.gcp.errors import ApiError
from localcloud.gcp.exchange import Request
from localcloud.gcp.store import Row

_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(slots=True, kw_only=True)
class Object:
    """One generation."""

    row: Row
    body: bytes

    @property
    def generation(self) -> int:
        return int(self.row["generation"])


@dataclass(slots=True, kw_only=True)
class Bucket:
    row: Row
    policy: Row
    live: dict[str, Object] = field(default_factory=dict[str, Object])
    old: list[Object] = field(default_factory=list[Object])
    """Noncurrent generations of a versioned bucket."""


@dataclass(slots=True, kw_only=True)
class Upload:
    """A resumable upload in progress."""

    bucket: str
    query: Mapping[str, str]
    row: Row
    body: bytearray = field(default_factory=bytearray)


def is_versioned(bucket: Bucket) -> bool:
    """Whether old generations are kept."""
    return bool(bucket.row.get("versioning", {}).get("enabled"))


def check_conditions(query: Mapping[str, str], found: Object | None, *, reading: bool) -> None:
    """Raises ApiError when the caller expects another generation."""
    generation = found.generation if found else 0
    wanted, unwanted = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    if wanted is not None and int(wanted) != generation:
        raise ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
    if unwanted is not None and int(unwanted) == generation:
        status = 304 if reading else 412
        raise ApiError(status, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
    meta = query.get("ifMetagenerationMatch")
    if meta is not None and (found is None or found.row["metageneration"] != meta):
        raise ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def ranged(body: bytes, asked: str | None, headers: dict[str, str]) -> Answer:
    """The part that a Range header asks for."""
    found = _RANGE.fullmatch(asked or "")
    if found is None or not (found[1] or found[2]):
        return Answer(body=body, headers=headers)
    if found[1]:
        start, end = int(found[1]), int(found[2]) if found[2] else len(body) - 1
    else:
        start, end = max(0, len(body) - int(found[2])), len(body) - 1
    if start >= len(body):
        return Answer(status=416, headers={**headers, "Content-Range": f"bytes */{len(body)}"})
    end = min(end, len(body) - 1)
    headers = {**headers, "Content-Range": f"bytes {start}-{end}/{len(body)}"}
    return Answer(status=206, body=body[start : end + 1], headers=headers)


def incomplete(upload: Upload) -> Answer:
    """The response to a partial upload: the range that has been received."""
    held = len(upload.body)
    return Answer(status=308, headers={"Range": f"bytes=0-{held - 1}"} if held else {})


def multipart(content_type: str, body: bytes) -> tuple[Row, bytes]:
    """The JSON and the content of a multipart/related body. Raises ApiError."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if boundary is None:
        raise ApiError(400, "invalid", "Multipart upload without a boundary.")
    mark = b"--" + boundary[1].encode()
    parts = body.split(mark, 2)
    if len(parts) != 3:
        raise ApiError(400, "invalid", "Multipart upload with fewer than two parts.")
    row = json.loads(parts[1].split(b"\r\n\r\n", 1)[1])
    head, _, media = parts[2].partition(b"\r\n\r\n")
    media = media[: media.rfind(b"\r\n" + mark)]
    kind = re.search(rb"content-type:\s*([^\r\n]+)", head, re.I)
    if kind is not None:
        row.setdefault("contentType", kind[1].decode())
    return row, media


def object_body(request: Request) -> Row:
    """A JSON object. Raises ApiError."""
    found = request.json()
    if not is_document(found):
        raise ApiError(400, "required", "Required")
    return found


def stamp(moment: datetime) -> str:
    """A time as Cloud Storage writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
