"""The plugin's process: `python -m localcloud.provider PACKAGE [--schema FILE] ENGINE`, started by the engine.

It writes its port as the first line, serves until SIGTERM, and ends with its engine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from pulumi.runtime.proto import provider_pb2_grpc

from localcloud.plugin_server import make_server
from localcloud.provider.install import NAMES, load_package
from localcloud.provider.planning import Planner
from localcloud.provider.schema import Schema, read_wheel
from localcloud.provider.server import Provider

_WORKERS = 32
_PARENT_CHECK_S = 1.0


def serve(provider: Provider, stop: threading.Event) -> None:
    """Serve on a free loopback port until `stop` is set or the engine is gone."""
    server, port = make_server(_WORKERS)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    engine = os.getppid()
    while not stop.wait(_PARENT_CHECK_S) and os.getppid() == engine:
        pass
    server.stop(grace=0)


def main() -> None:
    """Entry point of the plugin's executable."""
    parser = argparse.ArgumentParser(prog="python -m localcloud.provider", description=__doc__)
    parser.add_argument("package", choices=NAMES)
    parser.add_argument("--schema", type=Path, help="what plugin_dir wrote; without it the wheel is read")
    parser.add_argument("--plans-only", action="store_true", help="take types and properties that are not modelled")
    known, _ = parser.parse_known_args()
    package = load_package(known.package)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    schema = Schema.load(known.schema) if known.schema else read_wheel(package.resources)
    serve((Planner if known.plans_only else Provider)(package, schema), stop)


if __name__ == "__main__":
    main()
