"""Builds the node agent's archive. The same sources give the same bytes, so the digest identifies the agent."""

import io
import zipfile
from pathlib import Path
from typing import Final

FILES: Final = (
    "gpufleet/__init__.py",
    "gpufleet/clouds/__init__.py",
    "gpufleet/clouds/aws/__init__.py",
    "gpufleet/clouds/aws/metadata.py",
    "gpufleet/clouds/aws/signature.py",
    "gpufleet/clouds/aws/signed.py",
    "gpufleet/clouds/gcp/__init__.py",
    "gpufleet/clouds/gcp/signed.py",
    "gpufleet/clouds/objects.py",
    "gpufleet/clouds/wire.py",
    "gpufleet/domain/__init__.py",
    "gpufleet/domain/activity.py",
    "gpufleet/domain/catalogue.py",
    "gpufleet/domain/clocks.py",
    "gpufleet/domain/codes.py",
    "gpufleet/domain/data/__init__.py",
    "gpufleet/domain/data/gpus.csv",
    "gpufleet/domain/data/machines.csv",
    "gpufleet/domain/drains.py",
    "gpufleet/domain/durations.py",
    "gpufleet/domain/files.py",
    "gpufleet/domain/loopback.py",
    "gpufleet/domain/model.py",
    "gpufleet/domain/orders.py",
    "gpufleet/domain/parsed.py",
    "gpufleet/domain/printable.py",
    "gpufleet/domain/rsa.py",
    "gpufleet/domain/secrets.py",
    "gpufleet/domain/tags.py",
    "gpufleet/http_server.py",
    "gpufleet/logs.py",
    "hosts/__init__.py",
    "hosts/node/__init__.py",
    "hosts/node/__main__.py",
    "hosts/node/agent.py",
    "hosts/node/aws.py",
    "hosts/node/boot.py",
    "hosts/node/disks.py",
    "hosts/node/drain.py",
    "hosts/node/driver.py",
    "hosts/node/engine_client.py",
    "hosts/node/engine_key.py",
    "hosts/node/engine_process.py",
    "hosts/node/gate.py",
    "hosts/node/google.py",
    "hosts/node/health.py",
    "hosts/node/http2.py",
    "hosts/node/libtpu.py",
    "hosts/node/local_http.py",
    "hosts/node/log.py",
    "hosts/node/orders.py",
    "hosts/node/page.py",
    "hosts/node/ports.py",
    "hosts/node/server.py",
    "hosts/node/state.py",
    "hosts/node/stop_marker.py",
    "hosts/node/switch.py",
    "hosts/node/systemd.py",
    "serving/__init__.py",
    "serving/cache/__init__.py",
    "serving/cache/approval.py",
    "serving/cache/disk.py",
    "serving/cache/manifest.py",
    "serving/cache/staging.py",
    "serving/cache/store.py",
    "serving/cache/sync.py",
    "serving/cache/threads.py",
    "serving/engine_container.py",
    "serving/engine_gate.py",
    "serving/exporter_units.py",
    "serving/exposition.py",
    "serving/instance_settings.py",
    "serving/metrics.py",
    "serving/releases.py",
    "serving/router/__init__.py",
    "serving/router/error_pages.py",
    "serving/unit_files.py",
    "serving/weights.py",
)
"""The files that the agent imports besides its contracts, and the tables that it reads. A test derives this list from
the sources."""
CONTRACTS: Final = ("serving/accelerators", "serving/engines")
"""The agent finds contracts of accelerators and engines by the modules of these folders."""
_ENTRY: Final = "import runpy\n\nrunpy.run_module('hosts.node', run_name='__main__', alter_sys=True)\n"
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that the ZIP format can store."""
_UNIX: Final = 3
_MODE: Final = 0o644 << 16


def files(root: Path) -> list[str]:
    """Return the names of the agent's files under `root`, sorted."""
    contracts = (f"{folder}/{path.name}" for folder in CONTRACTS for path in (root / folder).glob("*.py"))
    return sorted([*FILES, *contracts])


def build(root: Path) -> bytes:
    """Build a zipapp of the agent's files under `root` (the folder that holds `hosts/node/`).

    Raises FileNotFoundError when a file is missing.
    """
    packed = io.BytesIO()
    packed.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(packed, "a") as archive:
        for name, body in [
            ("__main__.py", _ENTRY.encode()),
            *((name, (root / name).read_bytes()) for name in files(root)),
        ]:
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.create_system = _UNIX
            entry.external_attr = _MODE
            # stored, not compressed: the output of zlib differs between its versions
            archive.writestr(entry, body, zipfile.ZIP_STORED)
    return packed.getvalue()
