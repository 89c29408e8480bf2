"""Copies container images by digest to a registry that machines without internet access can reach. Uses skopeo."""

import base64
import ipaddress
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError

COPY_LIMIT_S: Final = 3600
"""Time limit for one copy. The vLLM image has about 10 GB."""
ASK_LIMIT_S: Final = 60
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
NOT_THERE: Final = re.compile(
    r"manifest unknown|name unknown|not found|[Ss]tatus ?(?:[Cc]ode)?(?: from registry)?:? 404\b"
)
"""Error messages of skopeo for an image that is not in the registry.

The pattern requires a status word before 404, because image names and digests may contain that number.
"""
ECR: Final = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
OTHER_TRANSPORTS: Final = ("oci:", "dir:", "docker-archive:", "docker://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """Source and target of one image."""

    source: str
    target: str
    """`registry/name@sha256:…`, the form that settings require."""
    copied: bool
    """False if the registry already had the image."""


class Registry:
    """The target registry for images."""

    def __init__(self, prefix: str, logins: Mapping[str, str] | None = None) -> None:
        """`prefix`: `host[:port][/path]`. `logins`: `user:password` by host; for ECR they are requested from AWS."""
        self._prefix = prefix.rstrip("/")
        self._logins = dict(logins or {})

    def mirror(self, source: str) -> Mirrored:
        """Copy an image for all platforms with unchanged digests. Raises CloudError."""
        digest = self._digest(_with_transport(source))
        target = f"{self._prefix}/{_name(source)}@{digest}"
        if self.has(target):
            return Mirrored(source=source, target=target, copied=False)
        place = f"docker://{self._prefix}/{_name(source)}:{digest.removeprefix('sha256:')[:16]}"
        pinned = _with_transport(source)
        if pinned.startswith("docker://") and "@" not in pinned:
            # the tag may change between reading its digest and copying it
            pinned = f"{pinned.rsplit(':', 1)[0] if ':' in pinned.rsplit('/', 1)[-1] else pinned}@{digest}"
        self._skopeo("copy", "--all", "--preserve-digests", pinned, place, limit=COPY_LIMIT_S)
        if not self.has(target):
            raise CloudError(f"{target}: was copied, but the registry does not have it")
        return Mirrored(source=source, target=target, copied=True)

    def has(self, target: str) -> bool:
        """Whether the registry has `name@sha256:…`. Raises CloudError if the registry cannot be queried."""
        try:
            self._skopeo("inspect", "--raw", f"docker://{target}", limit=ASK_LIMIT_S)
        except CloudError as error:
            if NOT_THERE.search(str(error)):
                return False
            raise
        return True

    def _digest(self, source: str) -> str:
        if found := DIGEST.search(source):
            return found[0]
        if source.startswith("oci:"):
            return _digest_of_layout(source)
        output = self._skopeo("inspect", "--format", "{{.Digest}}", source, limit=ASK_LIMIT_S).strip()
        if not DIGEST.fullmatch(output):
            raise CloudError(f"{source}: the registry returned no digest ({output!r})")
        return output

    def _skopeo(self, verb: str, *arguments: str, limit: int) -> str:
        program = shutil.which("skopeo")
        if program is None:
            raise CloudError("skopeo is not installed: it copies images (Debian: apt-get install skopeo)")
        with tempfile.TemporaryDirectory() as folder:
            # a separate file, because all users of the machine can see passwords on a command line
            logins = Path(folder, "auth.json")
            logins.touch(mode=0o600)
            logins.write_text(json.dumps({"auths": self._auths(arguments)}))
            command = [program, verb, *_insecure(verb, arguments), "--authfile", str(logins), *arguments]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
            except subprocess.TimeoutExpired as error:
                raise CloudError(f"skopeo {verb} {arguments[-1]} did not end within {limit} s") from error
        if done.returncode != 0:
            raise CloudError(f"skopeo {verb} {arguments[-1]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout

    def _auths(self, arguments: Sequence[str]) -> dict[str, dict[str, str]]:
        hosts = {a.removeprefix("docker://").split("/")[0] for a in arguments if a.startswith("docker://")}
        for host in hosts - self._logins.keys():
            if match := ECR.fullmatch(host):
                self._logins[host] = _ecr_login(match["region"])
        known = {host: self._logins[host] for host in hosts if host in self._logins}
        return {host: {"auth": base64.b64encode(login.encode()).decode()} for host, login in known.items()}


def _ecr_login(region: str) -> str:
    data = AwsCalls(region).one("ecr", "get_authorization_token")["authorizationData"]
    return base64.b64decode(data[0]["authorizationToken"]).decode()


def _with_transport(source: str) -> str:
    return source if source.startswith(OTHER_TRANSPORTS) else f"docker://{source}"


def _name(source: str) -> str:
    bare = source.split("@")[0].rstrip("/").rsplit("/", 1)[-1]
    return bare.split(":")[0]


def _digest_of_layout(source: str) -> str:
    # index.json of an OCI layout contains the manifest's digest; the registry uses the same digest
    path = source.removeprefix("oci:").split(":")[0]
    try:
        manifests = json.loads(Path(path, "index.json").read_text())["manifests"]
    except (OSError, ValueError, KeyError) as error:
        raise CloudError(f"{source}: is not an OCI layout: {error}") from error
    return str(manifests[0]["digest"])


def _insecure(verb: str, arguments: Sequence[str]) -> list[str]:
    """Flags that allow plain HTTP, only for registries on this machine."""
    flags: list[str] = []
    places = [a for a in arguments if a.startswith(OTHER_TRANSPORTS)]
    for index, place in enumerate(places):
        if place.startswith("docker://") and _on_loopback(place.removeprefix("docker://").split("/")[0]):
            side = "" if verb == "inspect" else ("src-" if index == 0 else "dest-")
            flags.append(f"--{side}tls-verify=false")
    return flags


def _on_loopback(host: str) -> bool:
    name = host.rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
