"""Cloud Storage: buckets, and objects whose content the program holds."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote

from localcloud.documents import inner
from localcloud.provider.checks import matches, one_of
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import RestResource, error_context, fit_labels
from localcloud.provider.gcp.session import rest_client
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties, asset_bytes

_CLASSES = frozenset({"ARCHIVE", "COLDLINE", "MULTI_REGIONAL", "NEARLINE", "REGIONAL", "STANDARD"})
_BOUNDARY = "gpu-fleet-local-provider"


def _no_google_name(given: Properties) -> list[Failure]:
    name = given.get("name")
    if isinstance(name, str) and (name.startswith("goog") or "google" in name):
        return [Failure(path="name", reason=f"{name!r}: bucket names may not begin with goog or hold google")]
    return []


class Bucket(RestResource):
    token = "gcp:storage/bucket:Bucket"
    api = ("storage.v1", "Bucket")
    service = "storage"
    place = ""
    labelled = True
    naming = Naming(limit=63, lower=True)
    force_new = frozenset({"location", "name"})
    mutable = frozenset({"publicAccessPrevention", "storageClass", "uniformBucketLevelAccess", "versioning"})
    local = frozenset({"forceDestroy"})
    computed = {
        "selfLink": "selfLink",
        "projectNumber": "projectNumber",
        "timeCreated": "timeCreated",
        "updated": "updated",
    }
    volatile = frozenset({"updated"})
    enums = {"publicAccessPrevention": frozenset({"enforced", "inherited"}), "storageClass": _CLASSES}
    rules = (
        fit_labels,
        matches("name", r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", "a bucket name (3 to 63 of a-z 0-9 . _ -)"),
        _no_google_name,
    )

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        access: Properties = {}
        if "uniformBucketLevelAccess" in inputs:
            access["uniformBucketLevelAccess"] = {"enabled": inputs["uniformBucketLevelAccess"]}
        if "publicAccessPrevention" in inputs:
            access["publicAccessPrevention"] = inputs["publicAccessPrevention"]
        moved = {"uniformBucketLevelAccess", "publicAccessPrevention"}
        rest_of_it = {k: v for k, v in inputs.items() if k not in moved}
        return {**rest_of_it, **({"iamConfiguration": access} if access else {})}

    def from_wire(self, raw: Properties) -> Properties:
        access = inner(raw, "iamConfiguration")
        uniform = inner(access, "uniformBucketLevelAccess").get("enabled", False)
        prevention = access.get("publicAccessPrevention", "inherited")
        return {**raw, "uniformBucketLevelAccess": uniform, "publicAccessPrevention": prevention}

    def fields_of(self, keys: frozenset[str]) -> frozenset[str]:
        moved = {"uniformBucketLevelAccess", "publicAccessPrevention"}
        return keys - moved | ({"iamConfiguration"} if keys & moved else set[str]())

    def shown(self, cloud: Cloud, raw: Properties, state: Properties) -> Properties:
        return {**super().shown(cloud, raw, state), "url": f"gs://{raw['name']}"}

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        project = str(inputs.get("project") or cloud.project)
        with error_context("Error creating Bucket"):
            rest_client(cloud, "storage").call("POST", "b", self.body(cloud, inputs), parameters={"project": project})
        return str(inputs["name"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        raw = rest_client(cloud, "storage").find(f"b/{ident}")
        return None if raw is None else self.shown(cloud, raw, state)

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self.patch(cloud, f"b/{ident}", change, change.keys - self.local)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        storage = rest_client(cloud, "storage")
        if storage.find(f"b/{ident}") is None:
            return
        if state.get("forceDestroy"):
            # objects of the first page are deleted when it is read again
            while items := storage.call("GET", f"b/{ident}/o", parameters={"versions": "true"}).get("items"):
                for item in items:
                    path = f"b/{ident}/o/{quote(item['name'], safe='')}"
                    storage.call("DELETE", path, parameters={"generation": str(item["generation"])})
        with error_context(f"Error deleting Bucket {ident!r}"):
            storage.call("DELETE", f"b/{ident}")


class BucketObject(Resource):
    token = "gcp:storage/bucketObject:BucketObject"
    naming = Naming(limit=1024)
    force_new = frozenset({"bucket", "name", "contentType", "cacheControl"})
    mutable = frozenset({"content", "source"})
    volatile = frozenset({"crc32c", "generation", "md5hash", "mediaLink"})
    enums = {}
    rules = (one_of("content", "source"),)

    @property
    def modelled(self) -> frozenset[str]:
        return self.force_new | self.mutable

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        self._put(cloud, inputs)
        return f"{inputs['bucket']}-{inputs['name']}"

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        storage = rest_client(cloud, "storage")
        found = storage.find(_path(state))
        if found is None:
            return None
        digest = base64.b64decode(found["md5Hash"]).hex()
        live: Properties = {
            "bucket": found["bucket"],
            "contentType": found.get("contentType"),
            "crc32c": found.get("crc32c"),
            "generation": int(found["generation"]),
            "md5hash": found["md5Hash"],
            "md5hexhash": digest,
            "mediaLink": found.get("mediaLink"),
            "name": found["name"],
            "outputName": found["name"],
            "selfLink": found.get("selfLink"),
        }
        content = state.get("content")
        if isinstance(content, str) and _md5(content.encode()) != found["md5Hash"]:
            # another writer changed it: the engine must see that
            live["content"] = f"md5 {found['md5Hash']}"
        return live

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self._put(cloud, change.new)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        storage = rest_client(cloud, "storage")
        if storage.find(_path(state)) is not None:
            with error_context(f"Error deleting object {state['name']!r}"):
                storage.call("DELETE", _path(state))

    def _put(self, cloud: Cloud, inputs: Properties) -> None:
        content, kind = self._content(cloud, inputs), "text/plain; charset=utf-8"
        if "source" in inputs:
            kind = "application/octet-stream"
        described: dict[str, Any] = {"name": inputs["name"], "contentType": inputs.get("contentType", kind)}
        if "cacheControl" in inputs:
            described["cacheControl"] = inputs["cacheControl"]
        parts = (
            f"--{_BOUNDARY}\r\nContent-Type: application/json; charset=utf-8\r\n\r\n{json.dumps(described)}\r\n"
            f"--{_BOUNDARY}\r\nContent-Type: {described['contentType']}\r\n\r\n"
        ).encode()
        whole = parts + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
        with error_context(f"Error uploading object {inputs['name']!r}"):
            rest_client(cloud, "upload").call(
                "POST",
                f"b/{inputs['bucket']}/o",
                parameters={"uploadType": "multipart"},
                content=whole,
                headers=headers,
            )

    def _content(self, cloud: Cloud, inputs: Properties) -> bytes:
        if "source" in inputs:
            return asset_bytes(inputs["source"], cloud.session.root)
        return str(inputs["content"]).encode()


def _path(state: Properties) -> str:
    return f"b/{state['bucket']}/o/{quote(str(state['name']), safe='')}"


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
