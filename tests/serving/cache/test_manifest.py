import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud import tiny_model
from serving import weights
from serving.cache import manifest as manifests
from serving.cache.manifest import ManifestError
from serving.weights import HeaderError

SMALL = tiny_model.TinyModelShape(layers=1, hidden=32, intermediate=32, heads=1, kv_heads=1, shards=1)
SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model.make(tmp_path / "model", SMALL)
    return tmp_path / "model"


def describe(folder: Path) -> manifests.Manifest:
    return manifests.describe(folder, name="chat", revision="r")


def test_a_manifest_round_trips_and_its_digest_matches_its_bytes(model: Path) -> None:
    manifest = describe(model)
    assert manifests.parse(manifest.render(), manifest.digest) == manifest
    assert describe(model).digest == manifest.digest
    assert manifest.size == sum(path.stat().st_size for path in model.iterdir())


def test_equal_models_have_the_same_revision(model: Path, tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "again", SMALL)
    assert describe(tmp_path / "again").digest == describe(model).digest
    tiny_model.make(tmp_path / "other", replace(SMALL, seed=1))
    assert describe(tmp_path / "other").digest != describe(model).digest


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lie(path: Path) -> None:
    body = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 2**40) + body[8:])


def overlap(path: Path) -> None:
    body = path.read_bytes()
    length = struct.unpack("<Q", body[:8])[0]
    header = json.loads(body[8 : 8 + length])
    first = min((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    header[first]["shape"][0] += 1
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body[8 + length :])


def pickled(path: Path) -> None:
    path.with_name("pytorch_model.bin").write_bytes(pickle.dumps({"weights": [1]}))


def code(path: Path) -> None:
    path.with_name("modeling_chat.py").write_text("import os")


def link(path: Path) -> None:
    path.with_name("secret.json").symlink_to("/etc/passwd")


def no_weights(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        pytest.param(cut, "truncated", id="truncated"),
        pytest.param(grow, "truncated or changed", id="a byte too many"),
        pytest.param(empty, "empty", id="zero bytes"),
        pytest.param(lie, "its header has a length", id="a header with a wrong length"),
        pytest.param(overlap, "does not fill", id="a header that lies about a shape"),
        pytest.param(pickled, r"pytorch_model\.bin", id="a pickle"),
        pytest.param(code, "modeling_chat", id="code"),
        pytest.param(link, r"secret\.json", id="a link"),
        pytest.param(no_weights, "safetensors", id="no weights"),
    ],
)
def test_invalid_model_folders_are_refused(model: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(model / SHARD)
    with pytest.raises(ManifestError, match=message):
        describe(model)


def test_hidden_files_and_pictures_are_left_out(model: Path) -> None:
    before = describe(model).digest
    (model / ".git").mkdir()
    (model / ".git" / "config").write_text("x")
    (model / ".gitattributes").write_text("x")
    (model / "logo.png").write_bytes(b"x")
    assert describe(model).digest == before


@pytest.mark.parametrize(
    "path",
    [
        "../x.json",
        "/etc/x.json",
        "a/../b.json",
        "a//b.json",
        "./a.json",
        ".hidden.json",
        "a\\b.json",
        "a b.json",
        "MANIFEST.json",
        "weights.bin",
        "model.pt",
        "run.py",
        "x",
        "",
        "a.json\n",
        "ü.json",
        None,
        7,
    ],
)
def test_paths_that_a_manifest_may_not_name(path: Any) -> None:
    with pytest.raises(ManifestError):
        manifests.check_path(path)


@pytest.mark.parametrize("path", ["config.json", "a/b/model-1.safetensors", "tokenizer.model", "chat_template.jinja"])
def test_paths_that_a_manifest_may_name(path: str) -> None:
    assert manifests.check_path(path) == path


def changed(model: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    value = json.loads(describe(model).render())
    change(value)
    return json.dumps(value).encode()


def set_path(value: dict[str, Any]) -> None:
    value["files"][0]["path"] = "../../etc/cron.d/x.json"


def set_size(value: dict[str, Any]) -> None:
    value["files"][0]["size"] = 0


def twice(value: dict[str, Any]) -> None:
    value["files"].append(value["files"][0])


def no_chunks(value: dict[str, Any]) -> None:
    value["files"][0]["chunks"] = []


def bad_digest(value: dict[str, Any]) -> None:
    value["files"][0]["chunks"][0] = "zz"


def version(value: dict[str, Any]) -> None:
    value["version"] = 2


@pytest.mark.parametrize("change", [set_path, set_size, twice, no_chunks, bad_digest, version])
def test_manifests_that_are_refused(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(ManifestError):
        manifests.parse(changed(model, change))


def test_a_manifest_with_another_digest_is_refused(model: Path) -> None:
    with pytest.raises(ManifestError, match="changed"):
        manifests.parse(describe(model).render() + b" ", describe(model).digest)


@given(body=st.binary(max_size=200))
def test_garbage_is_refused_and_never_a_crash(body: bytes) -> None:
    with pytest.raises(ManifestError):
        manifests.parse(body)


@given(body=st.binary(max_size=64), size=st.integers(0, 2**50))
def test_garbage_headers_are_refused_and_never_a_crash(body: bytes, size: int) -> None:
    try:
        length = weights.header_length(body, size)
        weights.parse_header(body[8 : 8 + length], size)
    except HeaderError:
        return
    assert body[8:10] == b"{}"


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=6),
    dtype=st.sampled_from(["F32", "BF16", "F8_E4M3", "I64"]),
)
def test_valid_headers_are_accepted(shapes: list[list[int]], dtype: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for number, shape in enumerate(shapes):
        size = weights.BITS[dtype] // 8
        for length in shape:
            size *= length
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    tensors = weights.parse_header(text, 8 + len(text) + end)
    assert sum(tensor.size for tensor in tensors) == end
    if end:
        with pytest.raises(HeaderError):
            weights.parse_header(text, 8 + len(text) + end - 1)
