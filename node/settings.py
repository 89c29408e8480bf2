"""`instance.json`: all that an instance is told. Written by user data, read here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from gpufleet.domain.model import CapacityType, Cloud
from serving.engine import EngineKind

VERSION: Final = 1


class SettingsError(ValueError):
    """The file cannot be used; names file, field and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What serves the model."""

    kind: EngineKind
    image: str
    args: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLimits:
    """How long each step may take before the boot has failed."""

    disks: timedelta
    cache: timedelta
    engine: timedelta
    warm_up: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One instance's settings."""

    environment: str
    cloud: Cloud
    region: str
    pool: str
    capacity_type: CapacityType
    group: str | None
    bucket: str
    model: str
    served_name: str
    engine: EngineSettings
    dcgm_image: str
    node_exporter_image: str | None = None
    agent_token: str
    cache_dir: str
    drain_deadline: timedelta
    drain_margin: timedelta
    metadata_poll: timedelta
    power_off_after: timedelta
    boot_limits: BootLimits

    def cache_under(self, root: Path) -> Path:
        """Where models lie on a machine whose files begin at `root`."""
        return root / self.cache_dir.lstrip("/")


def load(path: Path) -> Settings:
    """Read the file. Raises SettingsError."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error
    raw = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if raw.get("version") != VERSION:
        raise SettingsError(f"{path}: is not of version {VERSION}; the agent and the stack are of different releases")
    try:
        return _settings(raw)
    except KeyError as error:
        raise SettingsError(f"{path}: {error.args[0]}: is missing") from error
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _settings(raw: dict[str, Any]) -> Settings:
    engine, limits = raw["engine"], raw["boot_limits_s"]
    return Settings(
        environment=_text(raw, "environment"),
        cloud=Cloud(raw["cloud"]),
        region=_text(raw, "region"),
        pool=_text(raw, "pool"),
        capacity_type=CapacityType(raw["capacity_type"]),
        group=raw.get("group"),
        bucket=_text(raw, "bucket"),
        model=_text(raw, "model").strip("/"),
        served_name=_text(raw, "served_name"),
        engine=EngineSettings(
            kind=EngineKind(engine["kind"]),
            image=_text(engine, "image"),
            args=tuple(str(argument) for argument in engine["args"]),
            env={str(name): str(value) for name, value in engine["env"].items()},
        ),
        dcgm_image=_text(raw, "dcgm_image"),
        node_exporter_image=_text(raw, "node_exporter_image") if raw.get("node_exporter_image") else None,
        agent_token=_text(raw, "agent_token"),
        cache_dir=_text(raw, "cache_dir"),
        drain_deadline=_seconds(raw, "drain_deadline_s"),
        drain_margin=_seconds(raw, "drain_margin_s"),
        metadata_poll=_seconds(raw, "metadata_poll_s"),
        power_off_after=_seconds(raw, "power_off_after_s"),
        boot_limits=BootLimits(
            disks=_seconds(limits, "disks"),
            cache=_seconds(limits, "cache"),
            engine=_seconds(limits, "engine"),
            warm_up=_seconds(limits, "warm_up"),
        ),
    )


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: is {value!r}, must be a text")
    return value


def _seconds(raw: Mapping[str, Any], name: str) -> timedelta:
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 7 * 86400:
        raise ValueError(f"{name}: is {value!r}, must be seconds")
    return timedelta(seconds=value)
