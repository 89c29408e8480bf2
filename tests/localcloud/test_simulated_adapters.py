"""LoRA adapters of the simulated engines: they answer as the real ones do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import httpx
import pytest
from localcloud.engine.api import EngineServer
from localcloud.engine.arguments import parse
from localcloud.engine.batch import Batch
from localcloud.engine.loading import LoadError, check_adapter, load

from localcloud import tiny_model
from serving.engines import CONTRACTS
from serving.engines import launch as launches

NAMES = ("chat:sql", "chat:tax")


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[str]:
    """A simulated engine with two adapters, started with the arguments of its contract. Yields its URL."""
    tiny_model.make(folder / "model")
    adapters = {name: folder / name.replace(":", "-") for name in NAMES}
    for path in adapters.values():
        tiny_model.make_adapter(path)
    launch = CONTRACTS[kind].launch
    assert launch is not None
    server = launches.EngineServer(
        model_path=PurePosixPath(folder / "model"),
        served_name="chat",
        host="127.0.0.1",
        port=0,
        shutdown_timeout_s=1,
        adapters={name: PurePosixPath(path) for name, path in adapters.items()},
    )
    settings = parse([*launch.arguments(server)])
    made = EngineServer(settings)
    made.server_bind()
    made.batch = Batch(settings, load(settings.model))
    made.server_activate()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        host, port = made.socket.getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def status(url: str, model: str) -> int:
    body = {"model": model, "prompt": "hello", "max_tokens": 2}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code


@pytest.mark.parametrize(
    ("kind", "listed", "answers"),
    [
        pytest.param("vllm", ["chat", *NAMES], {"sql": 404, "chat:none": 404}, id="vLLM"),
        # a name without a colon selects the model itself, whatever it is
        pytest.param("sglang", ["chat", "sql", "tax"], {"sql": 200, "chat:none": 400}, id="SGLang"),
    ],
)
def test_adapters_are_listed_and_selected_by_the_name_of_requests(
    kind: str, listed: list[str], answers: dict[str, int], tmp_path: Path
) -> None:
    with serving(kind, tmp_path) as url:
        cards = httpx.get(f"{url}/v1/models", timeout=30).json()["data"]
        assert [card["id"] for card in cards] == listed
        assert [card.get("parent") for card in cards] == [None, "chat", "chat"]
        assert {name: status(url, name) for name in ("chat", *NAMES)} == dict.fromkeys(("chat", *NAMES), 200)
        assert {name: status(url, name) for name in answers} == answers


def test_a_folder_without_an_adapter_is_not_loaded(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "model")
    with pytest.raises(LoadError, match=r"adapter_config\.json"):
        check_adapter(tmp_path / "model")
