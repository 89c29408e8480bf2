"""The endpoints of each engine besides inference, as its own server has them."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from localcloud.engine import page
from localcloud.engine.arguments import SimulatorSettings
from localcloud.engine.batch import Batch
from localcloud.engine.reports import REPORTS
from serving.exposition import CONTENT_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running engine."""

    settings: SimulatorSettings
    loaded: Batch | None
    """None: the model is not loaded yet."""
    draining: bool
    """Whether SIGTERM was received."""
    accept: str = ""
    """The request's header `Accept`."""

    @property
    def batch(self) -> Batch:
        assert self.loaded is not None
        return self.loaded


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    body: bytes = b""
    content_type: str = "text/plain"
    status: HTTPStatus = HTTPStatus.OK


def _json(value: object) -> Answer:
    return Answer(json.dumps(value).encode(), "application/json")


def release(settings: SimulatorSettings) -> str:
    """The release that the engine reports."""
    return settings.release or f"{REPORTS[settings.kind]().version}+simulated"


def _version(served: Served) -> Answer:
    return _json({"version": release(served.settings)})


def _models(served: Served) -> Answer:
    cards: list[dict[str, Any]] = [
        {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "gpu-fleet-simulated-engine",
            "root": str(served.settings.model),
            "max_model_len": served.batch.max_model_len,
        }
        for name in served.settings.served_names
    ]
    cards += [
        cards[0] | {"id": name, "root": str(folder), "parent": cards[0]["id"], "max_model_len": None}
        for name, folder in served.settings.adapters.items()
    ]
    return _json({"object": "list", "data": cards})


def _alive(_served: Served) -> Answer:
    return Answer()


def _alive_until_drain(served: Served) -> Answer:
    return Answer(status=HTTPStatus.SERVICE_UNAVAILABLE if served.draining else HTTPStatus.OK)


def _metrics(served: Served) -> Answer:
    return Answer(served.batch.page().encode(), CONTENT_TYPE)


_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def _metrics_of_python(served: Served) -> Answer:
    """The page of prometheus_client's own server: in OpenMetrics, release 0.22 and later write an underscore for each
    colon of a name (`escape_metric_name`, seen on SGLang 0.5.23 with 0.26).
    """
    if "application/openmetrics-text" not in served.accept:
        return _metrics(served)
    lines = served.batch.page().splitlines()
    names = (line.partition("{")[0].partition(" ")[0] for line in lines)
    written = [name.replace(":", "_") + line[len(name) :] for name, line in zip(names, lines, strict=True)]
    return Answer("\n".join([*written, "# EOF", ""]).encode(), f"{_OPENMETRICS}; escaping=underscores")


def _metrics_of_vllm(served: Served) -> Answer:
    settings = served.settings
    text = page.render(
        served.batch,
        settings.served_names[0],
        block_size=settings.block_size,
        prefix_caching=settings.prefix_caching,
    )
    return Answer(text.encode(), CONTENT_TYPE)


def _load_of_vllm(served: Served) -> Answer:
    running, waiting, _ = served.batch.gauges()
    return _json({"server_load": running + waiting})


def _loads_of_sglang(served: Served) -> Answer:
    running, waiting, _ = served.batch.gauges()
    loads = [{"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting}]
    return _json({"version": release(served.settings), "loads": loads})


def _iterations_of_trtllm(_served: Served) -> Answer:
    """Statistics of iterations, which each reader empties."""
    return _json([])


def _status_of_lmdeploy(_served: Served) -> Answer:
    return _json({"status": "healthy"})


Pages = Mapping[str, Callable[[Served], Answer]]

_GET: Final[Mapping[str, Pages]] = {
    "vllm": {
        "/health": _alive,
        "/ping": _alive,
        "/metrics": _metrics_of_vllm,
        "/version": _version,
        "/load": _load_of_vllm,
        "/v1/models": _models,
    },
    # srt/entrypoints/http_server.py of 0.5.23
    "sglang": {
        "/health": _alive_until_drain,
        "/health_generate": _alive_until_drain,
        "/ready": _alive_until_drain,
        "/metrics": _metrics_of_python,
        "/v1/loads": _loads_of_sglang,
        "/v1/models": _models,
    },
    # tensorrt_llm/serve/openai_server.py
    "trtllm": {
        "/health": _alive,
        "/version": _version,
        "/metrics": _iterations_of_trtllm,
        "/prometheus/metrics": _metrics,
        "/v1/models": _models,
    },
    # lmdeploy/serve/openai of 0.16.0
    "lmdeploy": {"/health": _status_of_lmdeploy, "/metrics": _metrics, "/v1/models": _models},
    # lib/llm/src/http/service/health.rs
    "dynamo": {"/live": _alive_until_drain, "/health": _alive, "/metrics": _metrics, "/v1/models": _models},
    # python/openai/openai_frontend of 2.71.0
    "triton": {"/health/ready": _alive, "/metrics": _metrics, "/v1/models": _models},
}
_POST: Final[Mapping[str, Pages]] = {
    # no key protects them
    "trtllm": {"/update_weights": _alive, "/release_memory": _alive, "/resume_memory": _alive},
    "lmdeploy": {"/update_weights": _alive, "/sleep": _alive, "/wakeup": _alive},
    "dynamo": {"/busy_threshold": _alive},
    "triton": {"/v1/models/chat/load": _alive, "/v1/models/chat/unload": _alive},
}


def answer(method: str, path: str, served: Served) -> Answer | None:
    """The response of a page; None: the engine has no such page."""
    pages = (_GET if method == "GET" else _POST).get(served.settings.kind, {})
    return pages[path](served) if path in pages else None
