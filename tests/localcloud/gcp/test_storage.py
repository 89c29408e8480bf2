"""Lists of the emulated Cloud Storage: each object, generation and prefix is on one page."""

import json
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from localcloud.gcp.exchange import Request
from localcloud.gcp.locations import PROJECT
from localcloud.gcp.storage import Storage
from localcloud.time_scale import TimeScale

from tests.fixtures.localcloud.google_state import Clock, Hardware, google_state

BUCKET = "models"


@pytest.fixture
def storage() -> Storage:
    clock = Clock()
    made = Storage(google_state(clock, TimeScale(), Hardware()))
    bucket = {"name": BUCKET, "versioning": {"enabled": True}}
    ask(made, "POST", "/storage/v1/b", {"project": PROJECT}, json.dumps(bucket).encode())
    for name in ("a/1", "a/2", "b", "b", "c/1", "d"):
        clock.now += timedelta(seconds=1)
        query = {"uploadType": "media", "name": name}
        ask(made, "POST", f"/upload/storage/v1/b/{BUCKET}/o", query, b"body")
    return made


def ask(storage: Storage, method: str, path: str, query: dict[str, str], body: bytes = b"") -> Any:
    headers = {"content-type": "application/json"}
    return json.loads(storage.answer(Request(method=method, path=path, query=query, headers=headers, body=body)).body)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("query", "items", "prefixes"),
    [
        pytest.param({}, ["a/1", "a/2", "b", "c/1", "d"], [], id="objects"),
        pytest.param({"versions": "true"}, ["a/1", "a/2", "b", "b", "c/1", "d"], [], id="generations"),
        pytest.param({"delimiter": "/"}, ["b", "d"], ["a/", "c/"], id="folders"),
        pytest.param({"delimiter": "/", "prefix": "a/"}, ["a/1", "a/2"], [], id="one folder"),
    ],
)
def test_pages_have_each_object_generation_and_prefix_once(
    storage: Storage, size: int, query: dict[str, str], items: list[str], prefixes: list[str]
) -> None:
    found: list[tuple[str, str]] = []
    seen: list[str] = []
    token = ""
    while True:
        more = {"pageToken": token} if token else {}
        page = ask(storage, "GET", f"/storage/v1/b/{quote(BUCKET)}/o", {**query, **more, "maxResults": str(size)})
        assert len(page.get("items", [])) + len(page.get("prefixes", [])) <= size
        found += [(row["name"], row["generation"]) for row in page.get("items", [])]
        seen += page.get("prefixes", [])
        if "nextPageToken" not in page:
            break
        token = page["nextPageToken"]
    assert [name for name, _ in found] == items
    assert len(set(found)) == len(found)
    assert seen == prefixes
