"""Mirrors images with the real skopeo to a real registry on loopback."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.clouds.images import Registry
from gpufleet.domain.activity import CloudError
from tests.fixtures.networks import free_address, served


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    address = "{}:{}".format(*free_address())
    settings = tmp_path / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{address}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{tmp_path / 'store'}'}}}}\n"
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", settings], stdout=log, stderr=log)
        try:
            _wait_for(f"http://{address}/v2/")
            yield address
        finally:
            process.kill()
            process.wait()


def _wait_for(url: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if httpx.get(url, timeout=60).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise AssertionError(f"{url} did not answer within 120 s")


def an_image(folder: Path) -> tuple[str, str]:
    """Create a small image as an OCI layout. Returns its location and its digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("hello"))
    plain = packed.getvalue()
    layer, blobs = gzip.compress(plain, mtime=0), folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    diff = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff]}})
    parts = {"config": config.encode(), "layer": layer}
    described = {
        name: {"size": len(body), "digest": f"sha256:{hashlib.sha256(body).hexdigest()}"}
        for name, body in parts.items()
    }
    oci = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": {"mediaType": f"{oci}.config.v1+json", **described["config"]},
            "layers": [{"mediaType": f"{oci}.layer.v1.tar+gzip", **described["layer"]}],
        }
    ).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    for body in (*parts.values(), manifest):
        (blobs / hashlib.sha256(body).hexdigest()).write_bytes(body)
    listed = {"mediaType": f"{oci}.manifest.v1+json", "size": len(manifest), "digest": digest}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return f"oci:{folder}", digest


def test_an_image_keeps_its_digest_and_is_copied_only_once(registry: str, tmp_path: Path) -> None:
    source, digest = an_image(tmp_path / "engine")
    first = Registry(f"{registry}/gpu-fleet").mirror(source)
    assert (first.target, first.copied) == (f"{registry}/gpu-fleet/engine@{digest}", True)
    assert not Registry(f"{registry}/gpu-fleet").mirror(source).copied

    by_digest = Registry(f"{registry}/second").mirror(first.target)
    assert (by_digest.target, by_digest.copied) == (f"{registry}/second/engine@{digest}", True)


def test_a_tag_is_resolved_to_its_current_digest(registry: str, tmp_path: Path) -> None:
    source, digest = an_image(tmp_path / "engine")
    Registry(f"{registry}/a").mirror(source)
    tag = digest.removeprefix("sha256:")[:16]
    assert Registry(f"{registry}/b").mirror(f"{registry}/a/engine:{tag}").target.endswith(f"/b/engine@{digest}")


@pytest.mark.parametrize(
    ("source", "message"),
    [("oci:/nowhere", "is not an OCI layout"), ("127.0.0.1:1/engine:v1", "failed")],
    ids=["no layout", "no registry"],
)
def test_an_unreadable_source_is_an_error(registry: str, source: str, message: str) -> None:
    with pytest.raises(CloudError, match=message):
        Registry(registry).mirror(source)


UNAUTHORIZED = '{"errors": [{"code": "UNAUTHORIZED", "message": "who are you"}]}'
UNKNOWN = '{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "no such thing"}]}'


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        pytest.param(200, "{}", None, id="there"),
        pytest.param(404, "{}", None, id="not there"),
        pytest.param(404, "text of a proxy", None, id="not there, as a proxy answers"),
        pytest.param(404, UNKNOWN, None, id="not there, as a registry answers"),
        pytest.param(401, UNAUTHORIZED, "who are you", id="unauthorized"),
        pytest.param(403, "{}", "StatusCode: 403", id="forbidden"),
        pytest.param(500, "{}", "500 Internal Server Error", id="ill"),
    ],
)
def test_404_in_a_name_or_digest_does_not_count_as_absence(status: int, content: str, error: str | None) -> None:
    """Name and digest of the requested image contain 404, like skopeo's error message for an absent image."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = content.encode()
            self.send_response(200 if self.path == "/v2/" else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the log."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        address = f"127.0.0.1:{server.server_address[1]}"
        # skopeo verifies digests, so an existing image needs its real one
        digest = hashlib.sha256(content.encode()).hexdigest() if status == 200 else f"404{'a' * 61}"
        target = f"{address}/404/engine-404@sha256:{digest}"
        if error is None:
            assert Registry(address).has(target) is (status == 200)
        else:
            with pytest.raises(CloudError, match=error):
                Registry(address).has(target)
