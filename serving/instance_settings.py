"""`instance.json`: all that an instance is told. User data writes it, the node agent reads it. Standard library."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.rsa import KeyFormError, public_key
from serving.engine import EngineKind

VERSION: Final = 1
MOST_ORDER_KEYS: Final = 2
"""The one in use, and one that comes or goes."""
_LONGEST_S: Final = 7 * 86400


class InstanceSettingsError(ValueError):
    """The file cannot be used; names file, field and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What serves the model."""

    kind: EngineKind
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

    @property
    def total(self) -> timedelta:
        """How long a whole boot may take."""
        return sum((getattr(self, step.name) for step in fields(self)), timedelta())


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """One instance's settings."""

    environment: str
    cloud: Cloud
    region: str
    pool: str
    capacity_type: CapacityType
    group: str | None = None
    bucket: str
    """URL: `s3://…` or `gs://…`."""
    model: str
    served_name: str
    engine: EngineSettings
    dcgm_image: str
    node_exporter_image: str | None = None
    """None: no numbers of the machine itself. Such settings are written as before there were any."""
    engine_key: str
    """Where the secret lies that the engine asks of its clients: `ssm:/…` or `gcp-secret:projects/…`."""
    order_keys: tuple[str, ...]
    """Public keys of who may give orders to the agent (`gpufleet.domain.rsa`); one, or two while keys change."""
    cache_dir: str = "/mnt/nvme/models"
    drain_deadline: timedelta
    drain_margin: timedelta = timedelta(seconds=5)
    metadata_poll: timedelta = timedelta(seconds=5)
    power_off_after: timedelta = timedelta(minutes=15)
    """A machine whose boot failed, or that got no agent, is ended after this long: people may look at it first."""
    boot_limits: BootLimits = field(default_factory=BootLimits)

    def cache_under(self, root: Path) -> Path:
        """Where models lie on a machine whose files begin at `root`."""
        return root / self.cache_dir.lstrip("/")


_TEXTS: Final = (
    "environment", "region", "pool", "bucket", "model", "served_name", "dcgm_image", "engine_key", "cache_dir",
)  # fmt: skip
_TIMES: Final = ("drain_deadline", "drain_margin", "metadata_poll", "power_off_after")


def to_json(settings: InstanceSettings) -> dict[str, Any]:
    """The file as the contract has it."""
    limits = settings.boot_limits
    node_exporter = settings.node_exporter_image
    return {
        "version": VERSION,
        **{name: getattr(settings, name) for name in _TEXTS},
        "cloud": settings.cloud.value,
        "capacity_type": settings.capacity_type.value,
        "group": settings.group,
        "order_keys": list(settings.order_keys),
        "engine": asdict(settings.engine) | {"args": list(settings.engine.args)},
        **({"node_exporter_image": node_exporter} if node_exporter else {}),
        **{f"{name}_s": _whole(getattr(settings, name)) for name in _TIMES},
        "boot_limits_s": {each.name: _whole(getattr(limits, each.name)) for each in fields(limits)},
    }


def load(path: Path) -> InstanceSettings:
    """Read the file. Raises InstanceSettingsError."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InstanceSettingsError(f"{path}: {error}") from error
    raw = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if raw.get("version") != VERSION:
        raise InstanceSettingsError(
            f"{path}: is not of version {VERSION}; the agent and the stack are of different releases"
        )
    try:
        return from_json(raw)
    except KeyError as error:
        raise InstanceSettingsError(f"{path}: {error.args[0]}: is missing") from error
    except (TypeError, ValueError) as error:
        raise InstanceSettingsError(f"{path}: {error}") from error


def from_json(raw: Mapping[str, Any]) -> InstanceSettings:
    """Settings as `to_json` wrote them. Raises KeyError, TypeError and ValueError for what cannot be used."""
    engine, limits = raw["engine"], raw["boot_limits_s"]
    given: dict[str, Any] = {name: _text(raw, name) for name in _TEXTS}
    given |= {name: _seconds(raw, f"{name}_s") for name in _TIMES}
    given["model"] = given["model"].strip("/")
    return InstanceSettings(
        **given,
        cloud=Cloud(raw["cloud"]),
        capacity_type=CapacityType(raw["capacity_type"]),
        group=raw.get("group"),
        order_keys=_keys(raw["order_keys"]),
        engine=EngineSettings(
            kind=EngineKind(engine["kind"]),
            image=_text(engine, "image"),
            args=tuple(str(argument) for argument in engine["args"]),
            env={str(name): str(value) for name, value in engine["env"].items()},
        ),
        node_exporter_image=_text(raw, "node_exporter_image") if raw.get("node_exporter_image") else None,
        boot_limits=BootLimits(**{each.name: _seconds(limits, each.name) for each in fields(BootLimits)}),
    )


def _whole(duration: timedelta) -> int:
    return int(duration.total_seconds())


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: is {value!r}, must be a text")
    return value


def _keys(found: object) -> tuple[str, ...]:
    keys = tuple(str(each) for each in cast("list[object]", found)) if isinstance(found, list) else ()
    if not 1 <= len(keys) <= MOST_ORDER_KEYS:
        raise ValueError(f"order_keys: must be one or {MOST_ORDER_KEYS} public keys")
    for key in keys:
        try:
            public_key(key)
        except KeyFormError as error:
            raise ValueError(f"order_keys: one {error}") from error
    return keys


def _seconds(raw: Mapping[str, Any], name: str) -> timedelta:
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise ValueError(f"{name}: is {value!r}, must be seconds")
    return timedelta(seconds=value)
