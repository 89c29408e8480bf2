"""`pulumi-language-python ENGINE_ADDRESS`: serve until a signal, or until the engine has ended."""

import os
import signal
import sys
import threading
from typing import Final

from pulumi.runtime.proto import language_pb2_grpc

from localcloud.language_host.children import Children
from localcloud.language_host.servicer import LanguageHost
from localcloud.plugin_server import make_server

PARENT_CHECK_S: Final = 0.5


def main() -> int:
    # flags come before the address, which is the last argument
    engine = next((argument for argument in reversed(sys.argv[1:]) if not argument.startswith("-")), "")
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    children = Children()
    server, port = make_server(32)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost(engine, children), server)
    server.start()
    print(port, flush=True)
    try:
        while not stop.wait(PARENT_CHECK_S):
            if os.getppid() != parent:  # the engine has ended
                break
    finally:
        children.end_all()
        server.stop(grace=None)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # worker threads may still wait for a disconnected client
