"""The user data of a GPU instance: writes one settings file, fetches the node agent by its digest, runs it.

Nothing else happens here, but for one thing that nobody else can do: a machine that gets no agent ends itself. What
an instance does is code of the agent, tested as such. No secret travels in it, only the name of one.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from gpufleet.domain.model import CapacityType, Cloud

VERSION: Final = 1
LARGEST: Final = 16 * 1024
"""Bytes that EC2 takes before Base64."""
ARCHIVE_NAME: Final = "gpufleet-node.pyz"
LEAST_PYTHON: Final = (3, 11)
"""That the node agent runs on: the machine image's `python3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What serves the model."""

    kind: str
    image: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLimits:
    """How long each step of a boot may take before the instance gives up."""

    disks: timedelta = timedelta(seconds=60)
    cache: timedelta = timedelta(minutes=30)
    engine: timedelta = timedelta(minutes=15)
    warm_up: timedelta = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """`instance.json`: all that an instance is told."""

    environment: str
    cloud: Cloud
    region: str
    pool: str
    capacity_type: CapacityType
    bucket: str
    """URL: `s3://…` or `gs://…`."""
    model: str
    served_name: str
    engine: Engine
    dcgm_image: str
    node_exporter_image: str | None = None
    """None: no numbers of the machine itself. Such settings are written as before there were any."""
    agent_token: str
    """Where the secret lies: `ssm:/…` or `gsm:projects/…`."""
    drain_deadline: timedelta
    drain_margin: timedelta = timedelta(seconds=5)
    metadata_poll: timedelta = timedelta(seconds=5)
    power_off_after: timedelta = timedelta(minutes=15)
    """A machine whose boot failed, or that got no agent, is ended after this long: people may look at it first."""
    cache_dir: str = "/mnt/nvme/models"
    boot_limits: BootLimits = field(default_factory=BootLimits)


class UserDataError(ValueError):
    """The cloud would refuse it."""


def instance_json(settings: InstanceSettings) -> dict[str, Any]:
    """The settings file as the contract has it."""
    limits = settings.boot_limits
    return {
        "version": VERSION,
        "environment": settings.environment,
        "cloud": settings.cloud.value,
        "region": settings.region,
        "pool": settings.pool,
        "capacity_type": settings.capacity_type.value,
        "group": None,
        "bucket": settings.bucket,
        "model": settings.model,
        "served_name": settings.served_name,
        "engine": {
            "kind": settings.engine.kind,
            "image": settings.engine.image,
            "args": list(settings.engine.args),
            "env": dict(settings.engine.env),
        },
        "dcgm_image": settings.dcgm_image,
        **({"node_exporter_image": settings.node_exporter_image} if settings.node_exporter_image else {}),
        "agent_token": settings.agent_token,
        "cache_dir": settings.cache_dir,
        "drain_deadline_s": _seconds(settings.drain_deadline),
        "drain_margin_s": _seconds(settings.drain_margin),
        "metadata_poll_s": _seconds(settings.metadata_poll),
        "power_off_after_s": _seconds(settings.power_off_after),
        "boot_limits_s": {
            "disks": _seconds(limits.disks),
            "cache": _seconds(limits.cache),
            "engine": _seconds(limits.engine),
            "warm_up": _seconds(limits.warm_up),
        },
    }


def archive_key(sha256: str) -> str:
    """Where the agent of that digest lies in the bucket."""
    return f"agents/{sha256}/{ARCHIVE_NAME}"


def render(settings: InstanceSettings, agent_sha256: str) -> str:
    """The bash script. Raises UserDataError when the cloud would refuse it."""
    script = _SCRIPT.format(
        settings=json.dumps(instance_json(settings), indent=1, ensure_ascii=True),
        sha256=shlex.quote(agent_sha256),
        region=shlex.quote(settings.region),
        source=shlex.quote(f"{settings.bucket}/{archive_key(agent_sha256)}"),
        fetch=FETCH[settings.cloud],
        archive=ARCHIVE_NAME,
        power_off_s=_seconds(settings.power_off_after),
        python=LEAST_PYTHON,
        python_words=".".join(map(str, LEAST_PYTHON)),
    )
    if len(script.encode()) > LARGEST:
        raise UserDataError(
            f"user data of pool {settings.pool} has {len(script.encode())} bytes, the cloud takes {LARGEST}: "
            "shorten engine args or env"
        )
    return script


def _seconds(duration: timedelta) -> int:
    return int(duration.total_seconds())


FETCH: Final = {
    Cloud.AWS: 'aws s3 cp --only-show-errors "$1" "$2"',
    # curl is on every image of Google; gcloud, where it is, may be logged in as somebody else
    Cloud.GCP: """\
local metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}" token bucket object
  token=$(curl -fsS -H 'Metadata-Flavor: Google' \\
    "$metadata/computeMetadata/v1/instance/service-accounts/default/token" | cut -d'"' -f4)
  bucket=${1#gs://} bucket=${bucket%%/*} object=${1#gs://*/}
  curl -fsS -H "Authorization: Bearer $token" -o "$2" \\
    "${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}/storage/v1/b/$bucket/o/${object//\\//%2F}?alt=media\"""",
}
"""Bash that copies the object of URL `$1` into the file `$2`, with the machine's own role."""

_SCRIPT: Final = """\
#!/bin/bash
# Written by gpu-fleet: settings, then the node agent by its digest. Everything else is code of the agent.
set -euo pipefail
root=${{GPUFLEET_ROOT:-}}
export AWS_DEFAULT_REGION={region} HOME=${{HOME:-/root}}
install -d -m 0755 "$root/etc/gpu-fleet" "$root/opt/gpu-fleet"

cat >"$root/etc/gpu-fleet/instance.json" <<'GPUFLEET_SETTINGS'
{settings}
GPUFLEET_SETTINGS

fetch() {{
  {fetch}
}}

# A GPU machine without its agent serves nothing and says nothing: it must not cost money until somebody finds it.
give_up() {{
  echo "gpu-fleet: $1; this machine powers off in {power_off_s} s, unless gpufleet-node.service runs by then" >&2
  sleep {power_off_s}
  if [ "$(systemctl is-active gpufleet-node.service 2>/dev/null)" != active ]; then
    poweroff
  fi
  exit 1
}}

if ! python3 -c 'import sys; sys.exit(sys.version_info < {python})'; then
  give_up "the node agent needs Python {python_words} or newer as python3, here is $(python3 -V 2>&1 || true)"
fi

archive="$root/opt/gpu-fleet/{archive}"
for wait in 0 1 2 4 8 16 32 64; do
  sleep "$wait"
  if fetch {source} "$archive.part" && echo {sha256}"  $archive.part" | sha256sum --check --status; then
    mv -f "$archive.part" "$archive"
    python3 "$archive" boot || give_up "the node agent could not install itself"
    exit 0
  fi
  echo "gpu-fleet: node agent not fetched, or not the one expected" >&2
done
give_up "gave up fetching the node agent"
"""
