"""The plugin's folder, started as the engine starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import grpc
from google.protobuf import empty_pb2
from localcloud.provider.install import plugin_dir, plugin_version
from pulumi.runtime.proto import provider_pb2_grpc


def test_plugin_in_a_folder_with_spaces_starts_prints_its_port_and_ends_on_request(tmp_path: Path) -> None:
    folder = plugin_dir(tmp_path / "a folder's name", sys.executable)
    with subprocess.Popen(
        [str(folder / "pulumi-resource-aws"), "127.0.0.1:1"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as plugin:
        assert plugin.stdout is not None
        port = int(plugin.stdout.readline())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = provider_pb2_grpc.ResourceProviderStub(channel)
            info = stub.GetPluginInfo(empty_pb2.Empty(), timeout=120)
        plugin.send_signal(signal.SIGINT)
        assert plugin.wait(timeout=180) == 0
    assert info.version == plugin_version()


def test_plugin_folder_can_be_written_twice(tmp_path: Path) -> None:
    first = plugin_dir(tmp_path / "plugin", sys.executable)
    again = plugin_dir(tmp_path / "plugin", sys.executable)
    assert sorted(p.name for p in again.iterdir()) == ["pulumi-resource-aws", "schema.json"]
    assert first == again
