"""Reads secrets by reference: `ssm:NAME` (Parameter Store) or `gcp-secret:projects/P/secrets/S` (Secret Manager)."""

import re

from gpufleet.domain.activity import CloudError
from gpufleet.logs import hide


def read(reference: str, region: str) -> str:
    """Read the newest value and hide it from logs. Raises CloudError with the reference, never with a value."""
    value = _read(reference, region)
    hide(value)
    return value


def _read(reference: str, region: str) -> str:
    kind, _, name = reference.partition(":")
    if kind == "ssm" and name:
        from gpufleet.clouds.aws.calls import AwsCalls

        answer = AwsCalls(region).one("ssm", "get_parameter", Name=name, WithDecryption=True)
        return str(answer["Parameter"]["Value"])
    if kind == "gcp-secret" and (parts := re.fullmatch(r"projects/([^/]+)/secrets/([^/]+)", name)):
        from gpufleet.clouds.gcp.secrets import read_secret

        return read_secret(parts[1], parts[2])
    raise CloudError(
        f"{reference}: is not a supported secret reference: write ssm:NAME or gcp-secret:projects/P/secrets/S"
    )
