"""The user data of a GPU instance: writes one settings file, fetches the node agent by its digest, runs it.

Nothing else happens here, but for one thing that nobody else can do: a machine that gets no agent ends itself. What
an instance does is code of the agent, tested as such. No secret travels in it, only the name of one.
"""

import json
import shlex
from typing import Final

from gpufleet.domain.model import Cloud
from serving.instance_settings import InstanceSettings, to_json

LARGEST: Final = 16 * 1024
"""Bytes that EC2 takes before Base64."""
ARCHIVE_NAME: Final = "gpufleet-node.pyz"
LEAST_PYTHON: Final = (3, 11)
"""That the node agent runs on: the machine image's `python3`."""


class UserDataError(ValueError):
    """The cloud would refuse it."""


def archive_key(sha256: str) -> str:
    """Where the agent of that digest lies in the bucket."""
    return f"agents/{sha256}/{ARCHIVE_NAME}"


def render(settings: InstanceSettings, agent_sha256: str) -> str:
    """The bash script. Raises UserDataError when the cloud would refuse it."""
    script = _SCRIPT.format(
        settings=json.dumps(to_json(settings), indent=1, ensure_ascii=True),
        sha256=shlex.quote(agent_sha256),
        region=shlex.quote(settings.region),
        source=shlex.quote(f"{settings.bucket}/{archive_key(agent_sha256)}"),
        fetch=FETCH[settings.cloud],
        archive=ARCHIVE_NAME,
        power_off_s=int(settings.power_off_after.total_seconds()),
        python=LEAST_PYTHON,
        python_words=".".join(map(str, LEAST_PYTHON)),
    )
    if len(script.encode()) > LARGEST:
        raise UserDataError(
            f"user data of pool {settings.pool} has {len(script.encode())} bytes, the cloud takes {LARGEST}: "
            "shorten engine args or env"
        )
    return script


FETCH: Final = {
    Cloud.AWS: 'aws s3 cp --only-show-errors "$1" "$2"',
    # curl is on every image of Google; gcloud, where it is, may be logged in as somebody else
    Cloud.GCP: """\
local metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}" token bucket object
  token=$(curl -fsS -H 'Metadata-Flavor: Google' \\
    "$metadata/computeMetadata/v1/instance/service-accounts/default/token" | cut -d'"' -f4)
  bucket=${1#gs://} bucket=${bucket%%/*} object=${1#gs://*/}
  # by the shell itself, then by a pipe: arguments of a process are everybody's to read
  printf 'header = "Authorization: Bearer %s"\\n' "$token" | curl -fsS --config - -o "$2" \\
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
