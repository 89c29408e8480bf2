"""The sources of `gpufleet model add`: a folder, a bucket, a Hugging Face hub, an MLflow registry.

A model that is not on this machine is downloaded to a scratch folder first. Names are checked before the download, so
that no pickle and no path outside the folder is ever fetched. The hub's and the registry's own clients are used; they
are extras.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

from app.errors import AppError, ErrorCode
from app.stores import StorageLocation, open_place
from gpufleet import extras
from serving.cache import manifest as manifests
from serving.cache.manifest import CHUNK, SUFFIXES, ManifestError

_MLFLOW: Final = ("models:", "runs:", "mlflow-artifacts:")
_MLFLOW_OWN: Final = frozenset({"MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt"})
"""Files that MLflow adds next to a model for its own loader."""
_CONNECTIONS: Final = 8
_UNNAMED: Final = "unnamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A model on this machine, with the metadata of its source."""

    folder: Path
    revision: str = _UNNAMED
    source: str | None = None
    """None: a folder of this machine, whose path has no meaning elsewhere."""
    licence: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict[str, str])
    """By path, if the source publishes them."""


@contextlib.contextmanager
def open_source(url: str, scratch: Path | None, announce: Callable[[str], None]) -> Generator[Fetched]:
    """The model at a URL. Downloaded files are deleted afterwards. Raises AppError."""
    scheme = url.partition(":")[0] if ":" in url else ""
    if scheme in ("", "file"):
        folder = Path(url.removeprefix("file://")).expanduser()
        if not folder.is_dir():
            raise AppError(f"{folder}: is not a folder", ErrorCode.WRONG_USE)
        yield Fetched(folder=folder)
        return
    fetch = _fetcher(url, scheme)
    try:
        to = Path(tempfile.mkdtemp(prefix="gpufleet-model-", dir=scratch))
    except OSError as error:
        raise AppError(f"--scratch {scratch}: {error.strerror}", ErrorCode.WRONG_USE) from error
    try:
        yield fetch(url, to, announce)
    except ManifestError as error:
        raise AppError(f"{url}: {error}") from error
    except OSError as error:
        remedy = " (set --scratch to a folder with more free space)" if error.errno == errno.ENOSPC else ""
        raise AppError(f"{url}: {error}{remedy}") from error
    finally:
        shutil.rmtree(to, ignore_errors=True)


def _fetcher(url: str, scheme: str) -> Callable[[str, Path, Callable[[str], None]], Fetched]:
    if scheme in ("s3", "gs"):
        return _from_bucket
    if scheme == "hf":
        return _from_hub
    if url.startswith(_MLFLOW):
        return _from_mlflow
    raise AppError(
        f"{url}: source {scheme!r} is unknown; use a folder, s3://, gs://, hf://OWNER/NAME or models:/NAME/VERSION",
        ErrorCode.WRONG_USE,
    )


def _wanted(names: Iterable[str]) -> list[str]:
    """The names of files that belong to the model. Raises ManifestError for a path outside the folder and for a file
    that may run code.
    """
    shown = [name for name in names if not manifests.is_excluded(PurePosixPath(name))]
    return [manifests.check_path(name) for name in shown]


def _from_bucket(url: str, to: Path, announce: Callable[[str], None]) -> Fetched:
    place = open_place(url)
    keys = {key.removeprefix(f"{place.prefix}/"): key for key in place.listing.objects(place.prefix)}
    names = _wanted(keys)
    if not names:
        raise AppError(f"{url}: contains no model")

    def fetch(name: str) -> None:
        size = _copy(place, keys[name], to / name)
        announce(f"{name} ({size} bytes) fetched")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(fetch, names))
    return Fetched(folder=to, source=url)


def _copy(place: StorageLocation, key: str, path: Path) -> int:
    """Copy one object; all ranges are of the same version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(place.store.connect()) as reader, path.open("wb") as file:
        size, version = reader.size_and_version(key)
        for start in range(0, size, CHUNK):
            reader.read_range(key, start, min(CHUNK, size - start), version, lambda piece: _write(file, piece))
    return size


def _write(file: IO[bytes], piece: memoryview) -> None:
    file.write(piece)


def _from_hub(url: str, to: Path, announce: Callable[[str], None]) -> Fetched:
    """Download a commit of a repository. `main` is resolved once, so that all files are of one commit."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise AppError(f"{url}: {extras.missing('huggingface_hub') or error}") from error
    import httpx

    repository, _, revision = url.removeprefix("hf://").partition("@")
    api = cast(Any, HfApi)(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        info: Any = api.model_info(repository, revision=revision or None, files_metadata=True)
        names = _safe_of_hub([one.rfilename for one in info.siblings or ()], url, announce)

        def fetch(name: str) -> None:
            api.hf_hub_download(repository, name, revision=info.sha, local_dir=to)
            announce(f"{name} fetched")

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            list(pool.map(fetch, names))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, httpx.HTTPError) as error:
        message = str(error).strip().partition("\n")[0]
        raise AppError(
            f"{url}: the hub answered: {message} (private or gated models need HF_TOKEN; a mirror, HF_ENDPOINT)"
        ) from error
    return Fetched(
        folder=to,
        revision=str(info.sha),
        source=f"hf://{repository}@{info.sha}",
        licence=_licence(info),
        sha256={one.rfilename: str(one.lfs.sha256) for one in info.siblings or () if one.lfs is not None},
    )


def _safe_of_hub(names: list[str], url: str, announce: Callable[[str], None]) -> list[str]:
    """The files in a safe format: hubs store the same weights in several formats. Raises ManifestError if there is
    none.
    """
    safe = [name for name in names if PurePosixPath(name).suffix.lower() in SUFFIXES]
    left = sorted(set(names) - set(safe))
    if not any(name.endswith(".safetensors") for name in safe):
        raise ManifestError(
            f"no *.safetensors among {', '.join(left) or 'no files'}: pickle files are not supported, convert it"
        )
    if left:
        announce(f"{url}: files not used: {', '.join(left)}")
    return _wanted(safe)


def _licence(info: Any) -> str | None:
    card = info.card_data
    found = None if card is None else card.get("license")
    return None if found is None else str(found)


def _from_mlflow(url: str, to: Path, announce: Callable[[str], None]) -> Fetched:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.artifacts import download_artifacts, list_artifacts
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        raise AppError(f"{url}: {extras.missing('mlflow') or error}") from error
    try:
        names = _files_of_mlflow(list_artifacts, url)
        root = _model_of_mlflow(names, url)
        chosen = {
            name: name.removeprefix(root) for name in names if name.startswith(root) and name not in _MLFLOW_OWN
        }
        # MLflow stores a pipeline's tokenizer next to its model
        tokenizer = "components/tokenizer/"
        chosen |= {name: name.removeprefix(tokenizer) for name in names if name.startswith(tokenizer)}
        wanted = {name: path for name, path in chosen.items() if not manifests.is_excluded(PurePosixPath(path))}
        for name, path in wanted.items():
            manifests.check_path(path)
            got = Path(download_artifacts(artifact_uri=f"{url.rstrip('/')}/{name}", dst_path=str(to / ".mlflow")))
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            got.replace(to / path)
            announce(f"{path} fetched")
    except MlflowException as error:
        raise AppError(f"{url}: MLflow answered: {error} (MLFLOW_TRACKING_URI selects the server)") from error
    return Fetched(folder=to, revision=url.rstrip("/").rpartition("/")[2], source=url)


def _files_of_mlflow(list_artifacts: Any, url: str) -> list[str]:
    found: list[str] = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for one in list_artifacts(artifact_uri=f"{url.rstrip('/')}/{below}".rstrip("/")):
            (waiting if one.is_dir else found).append(_within(one.path, below))
    return found


def _within(path: str, below: str) -> str:
    """The artifact's path from the root. Some MLflow stores name it from their root, others from the requested
    folder.
    """
    return path if not below or path.startswith(f"{below}/") else f"{below}/{path}"


def _model_of_mlflow(names: list[str], url: str) -> str:
    """The folder with config.json and weights, with its slash. Raises ManifestError."""
    homes = {name.rpartition("/")[0] for name in names if name.endswith(".safetensors")}
    found = sorted(home for home in homes if f"{home}/config.json".lstrip("/") in names)
    if len(found) != 1:
        raise ManifestError(
            f"{len(found)} folders with config.json and *.safetensors; expected one; pickle files are not supported "
            "(log it with mlflow.transformers, save_pretrained)"
        )
    return f"{found[0]}/" if found[0] else ""
