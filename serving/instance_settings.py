"""`instance.json`: the settings of an instance. User data writes it, the agent reads it. Standard library only."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.rsa import KeyFormError, public_key
from serving.engine_container import launch_of

VERSION: Final = 1
MAX_ORDER_KEYS: Final = 2
"""The key in use, and the previous or next one during a rotation."""
_LONGEST_S: Final = 7 * 86400


class InstanceSettingsError(ValueError):
    """The file cannot be used; the message names the file, the field and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The inference engine: its image, arguments and variables."""

    kind: str
    image: str
    version: str | None = None
    """Release of the engine in the image, for engines that do not report it. None: the file then has no such key, as
    in earlier versions."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLimits:
    """Time limits of the boot steps. When a step exceeds its limit, the boot fails."""

    disks: timedelta = timedelta(seconds=60)
    cache: timedelta = timedelta(minutes=30)
    engine: timedelta = timedelta(minutes=15)
    warm_up: timedelta = timedelta(minutes=2)

    @property
    def total(self) -> timedelta:
        """The time limit of a whole boot: the sum of all steps."""
        return sum((getattr(self, step.name) for step in fields(self)), timedelta())


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """The settings of one instance."""

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
    adapters: Mapping[str, str] = field(default_factory=dict[str, str])
    """LoRA adapters: the name in requests, and the model in the bucket, as `models/chat-sql`. Empty: the file has no
    such key, as in versions before adapters."""
    engine: EngineSettings
    accelerator: AcceleratorKind = AcceleratorKind.NVIDIA
    """Kind of the instance's accelerators. NVIDIA: the file has no such key, as in versions before other kinds."""
    dcgm_image: str
    """Image of the exporter of NVIDIA GPUs."""
    accelerator_image: str | None = None
    """Image of the exporter of another kind of accelerator. None: no such key."""
    node_exporter_image: str | None = None
    """None: node_exporter does not run. The file then has no such key, as in versions before node_exporter."""
    gate_image: str | None = None
    """HAProxy, for engines with a gate. None: no such key, and an engine with a gate does not start."""
    engine_key: str
    """Where the engine's API key is stored: `ssm:/…` or `gcp-secret:projects/…`."""
    order_keys: tuple[str, ...]
    """Public keys that verify orders to the agent (`gpufleet.domain.rsa`): one, or two during a key rotation."""
    cache_dir: str = "/mnt/nvme/models"
    drain_deadline: timedelta
    drain_margin: timedelta = timedelta(seconds=5)
    metadata_poll: timedelta = timedelta(seconds=5)
    power_off_after: timedelta = timedelta(minutes=15)
    """Time until an instance without an agent, or with a failed boot, powers off. Operators can inspect it first."""
    boot_limits: BootLimits = field(default_factory=BootLimits)

    @property
    def exporter_image(self) -> str:
        """Image of the exporter of the instance's accelerators; empty: the node agent serves their page."""
        return self.dcgm_image if self.accelerator is AcceleratorKind.NVIDIA else self.accelerator_image or ""

    def cache_under(self, root: Path) -> Path:
        """Return the folder of the models on a machine whose file system starts at `root`."""
        return root / self.cache_dir.lstrip("/")


_TEXTS: Final = (
    "environment", "region", "pool", "bucket", "model", "served_name", "dcgm_image", "engine_key", "cache_dir",
)  # fmt: skip
_IMAGES: Final = ("accelerator_image", "node_exporter_image", "gate_image")
"""Optional."""
_TIMES: Final = ("drain_deadline", "drain_margin", "metadata_poll", "power_off_after")


def to_json(settings: InstanceSettings) -> dict[str, Any]:
    """Return the content of the file, as the contract defines it."""
    limits = settings.boot_limits
    optional = {name: getattr(settings, name) for name in _IMAGES}
    return {
        "version": VERSION,
        **{name: getattr(settings, name) for name in _TEXTS},
        "cloud": settings.cloud.value,
        "capacity_type": settings.capacity_type.value,
        "group": settings.group,
        "order_keys": list(settings.order_keys),
        "engine": _engine(settings.engine),
        **({} if settings.accelerator is AcceleratorKind.NVIDIA else {"accelerator": settings.accelerator.value}),
        **{name: image for name, image in optional.items() if image},
        **({"adapters": dict(settings.adapters)} if settings.adapters else {}),
        **{f"{name}_s": _whole(getattr(settings, name)) for name in _TIMES},
        "boot_limits_s": {each.name: _whole(getattr(limits, each.name)) for each in fields(limits)},
    }


def _engine(engine: EngineSettings) -> dict[str, Any]:
    content = asdict(engine) | {"args": list(engine.args)}
    return content if engine.version else {name: value for name, value in content.items() if name != "version"}


def load(path: Path) -> InstanceSettings:
    """Read the file. Raises InstanceSettingsError."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InstanceSettingsError(f"{path}: {error}") from error
    raw = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if raw.get("version") != VERSION:
        raise InstanceSettingsError(
            f"{path}: version is {raw.get('version')!r}, must be {VERSION}: the agent and the stack"
            " are of different releases"
        )
    try:
        return from_json(raw)
    except KeyError as error:
        raise InstanceSettingsError(f"{path}: {error.args[0]}: is missing") from error
    except (TypeError, ValueError) as error:
        raise InstanceSettingsError(f"{path}: {error}") from error


def from_json(raw: Mapping[str, Any]) -> InstanceSettings:
    """Build settings from the output of `to_json`. Raises KeyError, TypeError and ValueError for invalid values."""
    engine, limits = raw["engine"], raw["boot_limits_s"]
    given: dict[str, Any] = {name: _text(raw, name) for name in _TEXTS}
    given |= {name: _seconds(raw, f"{name}_s") for name in _TIMES}
    given |= {name: _text(raw, name) for name in _IMAGES if raw.get(name)}
    given["model"] = given["model"].strip("/")
    return InstanceSettings(
        **given,
        cloud=Cloud(raw["cloud"]),
        capacity_type=CapacityType(raw["capacity_type"]),
        group=raw.get("group"),
        accelerator=AcceleratorKind(raw.get("accelerator", AcceleratorKind.NVIDIA)),
        order_keys=_keys(raw["order_keys"]),
        adapters={str(name): str(model).strip("/") for name, model in raw.get("adapters", {}).items()},
        engine=EngineSettings(
            kind=_kind(engine["kind"]),
            image=_text(engine, "image"),
            version=_text(engine, "version") if engine.get("version") is not None else None,
            args=tuple(str(argument) for argument in engine["args"]),
            env={str(name): str(value) for name, value in engine["env"].items()},
        ),
        boot_limits=BootLimits(**{each.name: _seconds(limits, each.name) for each in fields(BootLimits)}),
    )


def _kind(value: object) -> str:
    kind = str(value)
    launch_of(kind)
    return kind


def _whole(duration: timedelta) -> int:
    return int(duration.total_seconds())


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: is {value!r}, must be text")
    return value


def _keys(found: object) -> tuple[str, ...]:
    keys = tuple(str(each) for each in cast("list[object]", found)) if isinstance(found, list) else ()
    if not 1 <= len(keys) <= MAX_ORDER_KEYS:
        raise ValueError(f"order_keys: expected 1 to {MAX_ORDER_KEYS} public keys, got {len(keys)}")
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
