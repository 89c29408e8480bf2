"""The servers that the Pulumi engine calls accept only processes of the user who started them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from localcloud.language_host.children import Children
from localcloud.language_host.servicer import LanguageHost
from localcloud.plugin_server import make_server
from pulumi.runtime.proto import language_pb2 as language
from pulumi.runtime.proto import language_pb2_grpc

OTHER_USER = 65534


@contextmanager
def host(uid: int) -> Iterator[Any]:
    """A client of a language host that serves this user."""
    server, port = make_server(2, uid=uid)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost("", Children()), server)
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield language_pb2_grpc.LanguageRuntimeStub(channel)
    finally:
        server.stop(grace=None)


def test_processes_of_the_same_user_are_accepted() -> None:
    with host(os.getuid()) as stub:
        assert stub.GetPluginInfo(empty_pb2.Empty(), timeout=120).version
        assert list(stub.InstallDependencies(language.InstallDependenciesRequest(), timeout=120))


CALLS: dict[str, Callable[[Any], Any]] = {
    "one answer": lambda stub: stub.Run(language.RunRequest(), timeout=120),
    "a stream of answers": lambda stub: list(
        stub.InstallDependencies(language.InstallDependenciesRequest(), timeout=120)
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_processes_of_another_user_are_refused(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = OTHER_USER if os.getuid() != OTHER_USER else OTHER_USER - 1
    with host(other) as stub, pytest.raises(grpc.RpcError) as refused:
        CALLS[call](stub)
    code: Any = refused.value
    assert code.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "another Unix user" in code.details()
    assert "refused: other-user" in capsys.readouterr().err
