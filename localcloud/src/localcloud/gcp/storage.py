"""Cloud Storage's JSON API: buckets, objects with generations, preconditions, ranges and three kinds of upload."""

import base64
import hashlib
import re
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import google_crc32c

from gpufleet.http_server import Answer
from localcloud.documents import is_document
from localcloud.gcp.errors import ApiError, required
from localcloud.gcp.exchange import Request, json_reply
from localcloud.gcp.locations import PROJECT_NUMBER, REGION
from localcloud.gcp.state import GoogleState
from localcloud.gcp.storage_parts import (
    Bucket,
    Object,
    Upload,
    check_conditions,
    incomplete,
    is_versioned,
    multipart,
    object_body,
    ranged,
    stamp,
)
from localcloud.gcp.store import Row, fingerprint

_PATHS: Final = (
    ("GET", re.compile(r"/storage/v1/b"), "buckets.list"),
    ("POST", re.compile(r"/storage/v1/b"), "buckets.insert"),
    ("GET", re.compile(r"/storage/v1/b/([^/]+)"), "buckets.get"),
    ("PATCH", re.compile(r"/storage/v1/b/([^/]+)"), "buckets.patch"),
    ("PUT", re.compile(r"/storage/v1/b/([^/]+)"), "buckets.update"),
    ("DELETE", re.compile(r"/storage/v1/b/([^/]+)"), "buckets.delete"),
    ("GET", re.compile(r"/storage/v1/b/([^/]+)/iam"), "buckets.getIamPolicy"),
    ("PUT", re.compile(r"/storage/v1/b/([^/]+)/iam"), "buckets.setIamPolicy"),
    ("GET", re.compile(r"/storage/v1/b/([^/]+)/o"), "objects.list"),
    ("GET", re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)"), "objects.get"),
    ("PATCH", re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)"), "objects.patch"),
    ("DELETE", re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)"), "objects.delete"),
    ("POST", re.compile(r"/upload/storage/v1/b/([^/]+)/o"), "objects.insert"),
    ("PUT", re.compile(r"/upload/storage/v1/b/([^/]+)/o"), "objects.insert"),
    (
        "POST",
        re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)"),
        "objects.rewrite",
    ),
)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_WRITABLE: Final = ("contentType", "cacheControl", "contentEncoding", "metadata", "storageClass")


class Storage:
    """All buckets."""

    def __init__(self, state: GoogleState) -> None:
        self._state = state
        self._buckets: dict[str, Bucket] = {}
        self._uploads: dict[str, Upload] = {}
        self._lock = threading.RLock()
        self._last_generation = 0

    def method_of(self, request: Request) -> str:
        """`storage:objects.get`; "" for what is not storage's."""
        found = self._match(request)
        return f"storage:{found[0]}" if found else ""

    def _match(self, request: Request) -> tuple[str, list[str]] | None:
        for method, pattern, name in _PATHS:
            found = pattern.fullmatch(request.path)
            if found is not None and method == request.method:
                return name, [unquote(part) for part in found.groups() if part is not None]
        return None

    def answer(self, request: Request) -> Answer:
        """Raises ApiError."""
        found = self._match(request)
        assert found is not None
        name, parts = found
        handler = getattr(self, f"_{name.replace('.', '_')}")
        with self._lock:
            return handler(request, *parts)

    # Buckets.

    def _bucket(self, name: str) -> Bucket:
        found = self._buckets.get(name)
        if found is None:
            raise ApiError(404, "notFound", "The specified bucket does not exist.")
        return found

    def _buckets_list(self, request: Request) -> Answer:
        prefix = request.query.get("prefix", "")
        items = [one.row for name, one in sorted(self._buckets.items()) if name.startswith(prefix)]
        return json_reply({"kind": "storage#buckets", **({"items": items} if items else {})})

    def _buckets_insert(self, request: Request) -> Answer:
        body = object_body(request)
        name = body.get("name")
        if not name:
            raise required("name")
        if not request.query.get("project"):
            raise required("project")
        if not _NAME.fullmatch(str(name)):
            raise ApiError(400, "invalid", f"Invalid bucket name: '{name}'")
        if name in self._buckets:
            raise ApiError(
                409, "conflict", "Your previous request to create the named bucket succeeded and you already own it."
            )
        now = stamp(self._state.now())
        url = self._state.places.google_url
        row: Row = {
            "storageClass": "STANDARD",
            "location": REGION.upper(),
            "iamConfiguration": {
                "publicAccessPrevention": "inherited",
                "uniformBucketLevelAccess": {"enabled": False},
            },
            **body,
            "kind": "storage#bucket",
            "id": name,
            "selfLink": f"{url}/storage/v1/b/{name}",
            "projectNumber": PROJECT_NUMBER,
            "name": name,
            "timeCreated": now,
            "updated": now,
            "metageneration": "1",
            "etag": "CAE=",
            "locationType": "region",
        }
        self._buckets[str(name)] = Bucket(row=row, policy={"kind": "storage#policy", "version": 1, "bindings": []})
        return json_reply(row)

    def _buckets_get(self, request: Request, name: str) -> Answer:
        return json_reply(self._bucket(name).row)

    def _buckets_patch(self, request: Request, name: str) -> Answer:
        row = self._bucket(name).row
        for key, value in object_body(request).items():
            if value is None:
                row.pop(key, None)
            elif key == "labels" and is_document(value):
                merged: Row = {**row.get("labels", {}), **value}
                row["labels"] = {k: v for k, v in merged.items() if v is not None}
            else:
                row[key] = value
        row["metageneration"] = str(int(row["metageneration"]) + 1)
        row["updated"] = stamp(self._state.now())
        return json_reply(row)

    _buckets_update = _buckets_patch

    def _buckets_delete(self, request: Request, name: str) -> Answer:
        bucket = self._bucket(name)
        if bucket.live or bucket.old:
            raise ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
        del self._buckets[name]
        return Answer(status=204)

    def _buckets_getIamPolicy(self, request: Request, name: str) -> Answer:
        policy = self._bucket(name).policy
        return json_reply({**policy, "etag": fingerprint(policy)})

    def _buckets_setIamPolicy(self, request: Request, name: str) -> Answer:
        bucket = self._bucket(name)
        body = object_body(request)
        if body.get("etag") not in (None, "", fingerprint(bucket.policy)):
            raise ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        bucket.policy = {k: v for k, v in body.items() if k != "etag"}
        return json_reply({**bucket.policy, "etag": fingerprint(bucket.policy)})

    # Objects.

    def _object(self, bucket: Bucket, name: str, query: Mapping[str, str]) -> Object:
        wanted = query.get("generation")
        found = bucket.live.get(name)
        if wanted is not None:
            every = [*bucket.old, *([found] if found else [])]
            found = next((o for o in every if o.row["name"] == name and o.row["generation"] == wanted), None)
        if found is None:
            raise ApiError(404, "notFound", f"No such object: {bucket.row['name']}/{name}")
        return found

    def _objects_list(self, request: Request, name: str) -> Answer:
        bucket = self._bucket(name)
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        most = int(request.query.get("maxResults") or 1000)
        rows = [one.row for one in bucket.live.values()]
        if request.query.get("versions") == "true":
            rows += [one.row for one in bucket.old]
        rows = sorted(
            (row for row in rows if row["name"].startswith(prefix)),
            key=lambda row: (row["name"], int(row["generation"])),
        )
        entries: dict[tuple[str, int], Row | str] = {}
        """Objects, and prefixes instead of the objects below them, by name and generation: both count in a page."""
        for row in rows:
            head, found, _ = row["name"][len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                entries[prefix + head + found, 0] = prefix + head + found
            else:
                entries[row["name"], int(row["generation"])] = row
        after, _, generation = request.query.get("pageToken", "").rpartition("#")
        left = [key for key in entries if key > (after, int(generation or 0))]
        page = [entries[key] for key in left[:most]]
        answer: Row = {"kind": "storage#objects"}
        if items := [one for one in page if not isinstance(one, str)]:
            answer["items"] = items
        if prefixes := [one for one in page if isinstance(one, str)]:
            answer["prefixes"] = prefixes
        if len(left) > most:
            answer["nextPageToken"] = "{}#{}".format(*left[most - 1])
        return json_reply(answer)

    def _objects_get(self, request: Request, name: str, key: str) -> Answer:
        found = self._object(self._bucket(name), key, request.query)
        check_conditions(request.query, found, reading=True)
        if request.query.get("alt") != "media":
            return json_reply(found.row)
        headers = {
            "Content-Type": found.row["contentType"],
            "ETag": found.row["etag"],
            "X-Goog-Generation": found.row["generation"],
            "X-Goog-Metageneration": found.row["metageneration"],
            "X-Goog-Hash": f"crc32c={found.row['crc32c']},md5={found.row['md5Hash']}",
            "X-Goog-Stored-Content-Length": found.row["size"],
            "Accept-Ranges": "bytes",
        }
        return ranged(found.body, request.headers.get("range"), headers)

    def _objects_patch(self, request: Request, name: str, key: str) -> Answer:
        found = self._object(self._bucket(name), key, request.query)
        check_conditions(request.query, found, reading=False)
        body = object_body(request)
        found.row.update({k: v for k, v in body.items() if k in _WRITABLE})
        found.row["metageneration"] = str(int(found.row["metageneration"]) + 1)
        return json_reply(found.row)

    def _objects_delete(self, request: Request, name: str, key: str) -> Answer:
        bucket = self._bucket(name)
        found = self._object(bucket, key, request.query)
        check_conditions(request.query, found, reading=False)
        if found in bucket.old:
            bucket.old.remove(found)
        else:
            del bucket.live[key]
            if request.query.get("generation") is None and is_versioned(bucket):
                bucket.old.append(found)
        return Answer(status=204)

    def _objects_rewrite(self, request: Request, name: str, key: str, to: str, to_key: str) -> Answer:
        source = self._object(self._bucket(name), key, {})
        row = self._put(
            to, to_key, {k: v for k, v in source.row.items() if k in _WRITABLE}, source.body, request.query
        )
        if "/copyTo/" in request.path:
            return json_reply(row)
        size = row["size"]
        done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return json_reply({**done, "resource": row})

    def _objects_insert(self, request: Request, name: str) -> Answer:
        self._bucket(name)
        kind = request.query.get("uploadType")
        content_type = request.headers.get("content-type", "application/octet-stream")
        match kind:
            case "media":
                key = request.query.get("name")
                if not key:
                    raise required("name")
                return json_reply(self._put(name, key, {"contentType": content_type}, request.body, request.query))
            case "multipart":
                row, body = multipart(content_type, request.body)
                return json_reply(self._put(name, str(row.get("name", "")), row, body, request.query))
            case "resumable":
                return self._resumable(request, name)
            case _:
                raise ApiError(400, "invalid", f"Invalid upload type: '{kind}'")

    def _resumable(self, request: Request, name: str) -> Answer:
        upload_id = request.query.get("upload_id")
        if upload_id is None:
            row = object_body(request) if request.body else {}
            row.setdefault("name", request.query.get("name", ""))
            row.setdefault("contentType", request.headers.get("x-upload-content-type", "application/octet-stream"))
            upload_id = f"local{len(self._uploads)}{self._state.store.number()}"
            self._uploads[upload_id] = Upload(bucket=name, query=request.query, row=row)
            where = f"{self._state.places.google_url}/upload/storage/v1/b/{name}/o"
            location = f"{where}?uploadType=resumable&upload_id={upload_id}"
            return Answer(headers={"Location": location, "X-GUploader-UploadID": upload_id})
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise ApiError(404, "notFound", "No such upload.")
        span, _, total = request.headers.get("content-range", "").removeprefix("bytes ").partition("/")
        first = span.partition("-")[0]
        if first.isdigit() and int(first) != len(upload.body):
            return incomplete(upload)
        upload.body += request.body
        if total and (not total.isdigit() or int(total) != len(upload.body)):
            return incomplete(upload)
        del self._uploads[upload_id]
        row = self._put(upload.bucket, str(upload.row["name"]), upload.row, bytes(upload.body), upload.query)
        return json_reply(row)

    def _put(self, name: str, key: str, given: Row, body: bytes, query: Mapping[str, str]) -> Row:
        """A new generation, when the conditions hold. Raises ApiError."""
        if not key:
            raise required("name")
        bucket = self._bucket(name)
        old = bucket.live.get(key)
        check_conditions(query, old, reading=False)
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        checksum = base64.b64encode(google_crc32c.Checksum(body).digest()).decode()
        for field_name, found in (("md5Hash", digest), ("crc32c", checksum)):
            if given.get(field_name) not in (None, "", found):
                raise ApiError(
                    400, "invalid", f"Provided {field_name} '{given[field_name]}' doesn't match '{found}'."
                )
        now = self._state.now()
        self._last_generation = max(self._last_generation + 1, int(now.timestamp() * 1_000_000))
        generation = str(self._last_generation)
        url = self._state.places.google_url
        quoted = key.replace("/", "%2F")
        row: Row = {
            "contentType": "application/octet-stream",
            "storageClass": "STANDARD",
            **{k: v for k, v in given.items() if k in _WRITABLE and v is not None},
            "kind": "storage#object",
            "id": f"{name}/{key}/{generation}",
            "selfLink": f"{url}/storage/v1/b/{name}/o/{quoted}",
            "mediaLink": f"{url}/download/storage/v1/b/{name}/o/{quoted}?generation={generation}&alt=media",
            "name": key,
            "bucket": name,
            "generation": generation,
            "metageneration": "1",
            "size": str(len(body)),
            "md5Hash": digest,
            "crc32c": checksum,
            "etag": fingerprint([name, key, generation]),
            "timeCreated": stamp(now),
            "updated": stamp(now),
        }
        if old is not None and is_versioned(bucket):
            bucket.old.append(old)
        bucket.live[key] = Object(row=row, body=body)
        return row
