"""`control.json`: the settings of a control host. It contains no secret."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1


class Role(StrEnum):
    """The role of a machine."""

    CONTROL = "control"
    """Watchdogs, Prometheus, Alertmanager, console, ledger; also the router, unless it has dedicated machines."""
    ROUTER = "router"
    """Only a router."""


class ControlSettingsError(ValueError):
    """The file is invalid. The message gives the value and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """The settings of one control host."""

    fleet: str
    """URL of the fleet document."""
    bucket: str
    """URL of the bucket with bundles and backups of the ledger: `s3://…` or `gs://…`."""
    role: Role = Role.CONTROL
    routes: bool = True
    """Whether this machine runs a router."""
    volume: str | None = None
    """Device of the volume that outlives the machine. None: there is none; the data are lost with the machine."""
    address: str = "0.0.0.0"  # noqa: S104 - inside the environment's network, behind its firewall
    """Address on which router, Prometheus and console listen."""
    inner: str = "127.0.0.1"
    """Address on which services for this machine only listen."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables of all units. They can contain names of secrets, never secrets."""
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variable of all units -> reference of its value: `ssm:…` or `gcp-secret:projects/…/secrets/…`.

    The values are read at boot.
    """

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "fleet": self.fleet,
            "bucket": self.bucket,
            "role": self.role.value,
            "routes": self.routes,
            "volume": self.volume,
            "address": self.address,
            "inner": self.inner,
            "environment": self.environment,
            "secrets": self.secrets,
        }


def load(path: Path) -> ControlSettings:
    """Read the settings file. Raises ControlSettingsError."""
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        if (version := found.pop("version")) != VERSION:
            raise ControlSettingsError(f"{path}: version is {version!r}, must be {VERSION}: use newer boot data")
        return ControlSettings(**found | {"role": Role(found["role"])})
    except OSError as error:
        raise ControlSettingsError(f"{path}: {error.strerror or error}: is this a control host?") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ControlSettingsError(f"{path}: {error}") from error
