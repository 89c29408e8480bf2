"""The user data of a control host: a script that writes one settings file, fetches the bundle by its digest and
runs it.

As on a GPU instance, the script does nothing else: the logic is in the bundle. The script contains no secret.
"""

import json
import shlex
from typing import Final

from gpufleet.domain.model import Cloud
from hosts.control import bundle, paths
from hosts.control.settings import ControlSettings
from serving.user_data import FETCH, MAX_SCRIPT_BYTES, UserDataError


def render(settings: ControlSettings, cloud: Cloud, region: str, sha256: str) -> str:
    """Return the bash script. Raises UserDataError if it is too large for the cloud, and for an invalid digest."""
    if not paths.SHA256.fullmatch(sha256):
        raise UserDataError(f"{sha256!r} is not the sha256 of a bundle: 64 hexadecimal digits")
    script = _SCRIPT.format(
        settings=json.dumps(settings.to_json(), indent=1, ensure_ascii=True),
        sha256=shlex.quote(sha256),
        region=shlex.quote(region),
        source=shlex.quote(f"{settings.bucket}/{bundle.key(sha256)}"),
        fetch=FETCH[cloud],
        kept=bundle.KEPT,
        file=paths.SETTINGS,
        releases=paths.RELEASES,
        current=paths.CURRENT,
    )
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise UserDataError(
            f"boot data of the control host have {len(script.encode())} bytes;"
            f" the cloud accepts at most {MAX_SCRIPT_BYTES}"
        )
    return script


_SCRIPT: Final = """\
#!/bin/bash
# Written by gpu-fleet: settings, then the control host's bundle by its digest. Everything else is code of the bundle.
set -euo pipefail
root=${{GPUFLEET_ROOT:-}}
export AWS_DEFAULT_REGION={region} HOME=${{HOME:-/root}}
install -d -m 0755 "$root/etc/gpu-fleet" "$root/{releases}"

cat >"$root/{file}" <<'GPUFLEET_SETTINGS'
{settings}
GPUFLEET_SETTINGS

fetch() {{
  {fetch}
}}

release="$root/{releases}/"{sha256}
if [ -e "$root/{current}" ]; then
  # this machine was set up before: its release is the affair of `gpufleet upgrade`
  exec "$root/{current}/bin/gpufleet" host install
fi
for wait in 1 2 4 8 16 32 64 0; do
  rm -rf "$release.part"
  mkdir -p "$release.part"
  kept="$release.part/{kept}"
  if fetch {source} "$kept" && echo {sha256}"  $kept" | sha256sum --check --status &&
    tar -xzf "$kept" -C "$release.part" --no-same-owner; then
    rm -rf "$release"
    mv -f "$release.part" "$release"
    ln -sfn "$release" "$root/{current}"
    exec "$root/{current}/bin/gpufleet" host install
  fi
  echo "gpu-fleet: bundle not fetched, or not the one expected; next try in $wait s" >&2
  sleep "$wait"
done
echo "gpu-fleet: the bundle could not be fetched" >&2
exit 1
"""
