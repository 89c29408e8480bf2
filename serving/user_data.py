"""The user data of a GPU instance: writes the settings file, fetches the node agent by its digest, and runs it.

The agent does everything else, because its code is tested. One exception: user data powers the machine off when it
cannot start the agent. User data holds the names of secrets, but no secrets.
"""

import json
import shlex
from typing import Final

from gpufleet.domain.model import Cloud
from serving.instance_settings import InstanceSettings, to_json

MAX_SCRIPT_BYTES: Final = 16 * 1024
"""Maximum size of user data on EC2, in bytes before Base64."""
ARCHIVE_NAME: Final = "gpufleet-node.pyz"
MIN_PYTHON: Final = (3, 11)
"""Minimum Python version for the node agent, which runs on `python3` of the machine image."""


class UserDataError(ValueError):
    """The cloud would reject the user data."""


def archive_key(sha256: str) -> str:
    """Return the object key of the agent with this digest."""
    return f"agents/{sha256}/{ARCHIVE_NAME}"


def render(settings: InstanceSettings, agent_sha256: str) -> str:
    """Return the bash script. Raises UserDataError when the cloud would reject it."""
    script = _SCRIPT.format(
        settings=json.dumps(to_json(settings), indent=1, ensure_ascii=True),
        sha256=shlex.quote(agent_sha256),
        region=shlex.quote(settings.region),
        source=shlex.quote(f"{settings.bucket}/{archive_key(agent_sha256)}"),
        fetch=FETCH[settings.cloud],
        archive=ARCHIVE_NAME,
        power_off_s=int(settings.power_off_after.total_seconds()),
        python=MIN_PYTHON,
        python_words=".".join(map(str, MIN_PYTHON)),
    )
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise UserDataError(
            f"user data of pool {settings.pool} has {len(script.encode())} bytes; the limit is {MAX_SCRIPT_BYTES}: "
            "shorten engine args or env"
        )
    return script


FETCH: Final = {
    Cloud.AWS: 'aws s3 cp --only-show-errors "$1" "$2"',
    # every Google image has curl; gcloud may be missing, or logged in with another account
    Cloud.GCP: """\
local metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}" token bucket object
  token=$(curl -fsS -H 'Metadata-Flavor: Google' \\
    "$metadata/computeMetadata/v1/instance/service-accounts/default/token" | cut -d'"' -f4)
  bucket=${1#gs://} bucket=${bucket%%/*} object=${1#gs://*/}
  # by the shell itself, then by a pipe: arguments of a process are everybody's to read
  printf 'header = "Authorization: Bearer %s"\\n' "$token" | curl -fsS --config - -o "$2" \\
    "${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}/storage/v1/b/$bucket/o/${object//\\//%2F}?alt=media\"""",
}
"""Bash code that copies the object at URL `$1` to the file `$2`, with the machine's own role."""

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

# A GPU machine without its agent neither serves nor reports, but costs money: power it off.
give_up() {{
  echo "gpu-fleet: $1; this machine powers off in {power_off_s} s, unless gpufleet-node.service runs by then" >&2
  sleep {power_off_s}
  if [ "$(systemctl is-active gpufleet-node.service 2>/dev/null)" != active ]; then
    poweroff
  fi
  exit 1
}}

if ! python3 -c 'import sys; sys.exit(sys.version_info < {python})'; then
  give_up "the node agent needs Python {python_words} or newer as python3, but python3 is $(python3 -V 2>&1 || true)"
fi

archive="$root/opt/gpu-fleet/{archive}"
for wait in 0 1 2 4 8 16 32 64; do
  sleep "$wait"
  if fetch {source} "$archive.part" && echo {sha256}"  $archive.part" | sha256sum --check --status; then
    mv -f "$archive.part" "$archive"
    python3 "$archive" boot || give_up "the node agent could not install itself"
    exit 0
  fi
  echo "gpu-fleet: the node agent cannot be fetched or does not match its digest" >&2
done
give_up "the node agent could not be fetched"
"""
