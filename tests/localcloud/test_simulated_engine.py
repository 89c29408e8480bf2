"""The simulated engine with clients that disconnect."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from localcloud.engine.api import EngineServer
from localcloud.engine.arguments import parse
from localcloud.engine.batch import Batch, Finish
from localcloud.engine.loading import load

from localcloud import tiny_model

CLIENTS = 40
ASK = {"model": "chat", "prompt": "hello", "max_tokens": 2}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EngineServer]:
    tiny_model.make(tmp_path / "model", tiny_model.TinyModelShape())
    settings = parse(["serve", str(tmp_path / "model"), "--served-model-name", "chat", "--host", "127.0.0.1"])
    made = EngineServer(settings)
    made.server_address = ("127.0.0.1", 0)
    made.server_bind()
    made.batch = Batch(settings, load(settings.model))
    made.server_activate()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_clients_that_disconnect_before_the_first_token_block_no_others(server: EngineServer) -> None:
    address = server.socket.getsockname()
    body = json.dumps(ASK | {"stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(CLIENTS):
        with socket.create_connection(address) as client:
            client.sendall(head + body)
            # closed with a reset, so later writes to it fail
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer = httpx.post(f"http://{address[0]}:{address[1]}/v1/completions", json=ASK, timeout=30)
    assert answer.status_code == 200
    assert server.batch is not None
    assert server.batch.counters.finished[Finish.LENGTH] >= 1
