"""`control.json`: all that a control host is told. No secret is in it."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1


class Role(StrEnum):
    """What a machine is for."""

    CONTROL = "control"
    """Watchdogs, Prometheus, Alertmanager, console, ledger; the router, too, unless machines of its own have it."""
    ROUTER = "router"
    """A router alone."""


class ControlSettingsError(ValueError):
    """The file cannot be used; says which value and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """One control host."""

    fleet: str
    """URL of the fleet document."""
    bucket: str
    """URL: `s3://…` or `gs://…`; bundles and the ledger's backups lie there."""
    role: Role = Role.CONTROL
    routes: bool = True
    """Whether this machine runs a router."""
    volume: str | None = None
    """Device of the volume that outlives the machine; None: there is none, its data end with it."""
    address: str = "0.0.0.0"  # noqa: S104 - inside the environment's network, behind its firewall
    """Where router, Prometheus and console listen."""
    inner: str = "127.0.0.1"
    """Where those listen that serve this machine alone."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of every unit; names of secrets, never secrets."""
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    """Variable of every unit to where its value lies: `ssm:…` or `gcp-secret:projects/…/secrets/…`. Read at boot."""

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
    """Raises ControlSettingsError."""
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        if found.pop("version") != VERSION:
            raise ControlSettingsError(f"{path}: is of another version than {VERSION}: take newer boot data")
        return ControlSettings(**found | {"role": Role(found["role"])})
    except OSError as error:
        raise ControlSettingsError(f"{path}: {error.strerror or error}: is this a control host?") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ControlSettingsError(f"{path}: {error}") from error
