"""`python -m localcloud.engine serve DIR …`."""

import os
import signal
import sys
import threading
import time
from types import FrameType

from localcloud.engine.api import EngineServer
from localcloud.engine.arguments import SimulatorSettings, parse
from localcloud.engine.batch import Batch
from localcloud.engine.endpoints import release
from localcloud.engine.loading import LoadError, check_adapter, load
from localcloud.exporters.metadata import hardware_here


def main() -> int:
    """Load, serve, and on SIGTERM drain for --shutdown-timeout."""
    settings = parse(sys.argv[1:])
    _log(f"simulated engine {release(settings)}: it computes no model; loading {settings.model}")
    server = EngineServer(settings)
    try:
        server.server_bind()
    except OSError as error:
        _log(f"{settings.host}:{settings.port}: {error.strerror}; check for another engine on this address")
        return 1
    asked = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        asked.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if not _load(settings, server):
        return 1
    server.server_activate()
    _serve_device_metrics(settings)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
    _log(f"serving {' '.join(settings.served_names)} on http://{settings.host}:{settings.port}")
    while not asked.wait(1):
        if (server.faults / "engine-crash").exists():
            _log("the fault engine-crash is set: the engine ends")
            return 1
    return _shut_down(settings, server)


def _serve_device_metrics(settings: SimulatorSettings) -> None:
    """On a machine with TPUs, the process of the engine also serves libtpu's metrics."""
    hardware = hardware_here()
    if hardware is not None and hardware.kind == "tpu":
        from localcloud.exporters import libtpu  # gRPC: other machines start without it

        libtpu.serve_with((settings.host, settings.port), hardware)


def _load(settings: SimulatorSettings, server: EngineServer) -> bool:
    begun = time.monotonic()
    try:
        model = load(settings.model)
        for folder in settings.adapters.values():
            check_adapter(folder)
    except LoadError as error:
        _log(str(error))
        return False
    if settings.max_model_len is not None and settings.max_model_len > model.max_context:
        _log(
            f"User-specified max_model_len ({settings.max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.max_context})"
        )
        return False
    time.sleep(max(0.0, settings.load_s - (time.monotonic() - begun)))
    batch = Batch(settings, model)
    if batch.blocks * settings.block_size < batch.max_model_len:
        _log(
            f"the KV cache holds {batch.blocks * settings.block_size} tokens, the context is {batch.max_model_len}: "
            "raise --kv-cache-memory-bytes or lower --max-model-len"
        )
        return False
    server.batch = batch
    return True


def _shut_down(settings: SimulatorSettings, server: EngineServer) -> int:
    assert server.batch is not None
    server.draining.set()
    if settings.kind == "sglang":
        _log("shutting down when no request runs")
        server.batch.wait_until_empty()
        time.sleep(0.2)
        os._exit(0)
    _log(f"shutting down, waiting up to {settings.shutdown_timeout_s} s for running requests")
    if not server.batch.drain(settings.shutdown_timeout_s):
        _log("the timeout is over; the clients of unfinished requests get no more bytes")
        server.shutdown()
        server.server_close()
        server.batch.wait_until_empty()
    else:
        # threads may still be sending the last responses
        time.sleep(0.2)
    sys.stdout.flush()
    os._exit(0)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
