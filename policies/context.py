"""What the rules must know of the environment beside its resources: read from the stack's settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final

from gpufleet.domain.model import Cloud
from gpufleet.domain.parsed import is_map

SETTINGS_KEY: Final = "gpu-fleet:fleet"


class ContextError(ValueError):
    """The settings say something of the policies that cannot be used; names path, value and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """An exception from one rule for one resource, owned by somebody, until a day."""

    rule: str
    resource: str
    """Name of the resource, or `*`."""
    owner: str
    reason: str
    until: date

    def covers(self, rule: str, resource: str, today: date) -> bool:
        return self.rule == rule and self.resource in ("*", resource) and today <= self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One environment. Absent limits are not checked, and the pack says which."""

    cloud: Cloud | None = None
    environment: str = ""
    region: str = ""
    today: date
    allowed_machine_types: frozenset[str] | None = None
    usd_per_month: Decimal | None = None
    usd_per_hour_at_max: Decimal | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The stack's configuration, as the engine passes it."""
    model_gib: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """Weights of each pool's model, by pool name."""
    model_sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where each model comes from, by model name."""
    waivers: tuple[Waiver, ...] = ()

    @property
    def is_prod(self) -> bool:
        return self.environment == "prod"

    def waiver(self, rule: str, resource: str) -> Waiver | None:
        """The exception that covers this rule and resource today, if there is one."""
        return next((w for w in self.waivers if w.covers(rule, resource, self.today)), None)


def from_config(config: Mapping[str, Any], today: date) -> Context:
    """The context of a stack's configuration (values as the engine passes them: text, JSON inside).

    Raises ContextError. Resources alone can be judged without settings, so a missing map is an empty context.
    """
    try:
        return _context(config, today)
    except (AttributeError, TypeError, KeyError, ArithmeticError) as error:
        # the program says it better; a pack that does not start would say nothing
        raise ContextError(f"{SETTINGS_KEY}: cannot be read ({error}); see `gpufleet settings check`") from error


def _context(config: Mapping[str, Any], today: date) -> Context:
    fleet = _decoded(config.get(SETTINGS_KEY))
    if fleet is None:
        return Context(today=today)
    if not is_map(fleet):
        raise ContextError(f"{SETTINGS_KEY}: must be a map, is {fleet!r}")
    policies: Mapping[str, Any] = fleet.get("policies") or {}
    budget: Mapping[str, Any] = fleet.get("budget") or {}
    cloud = fleet.get("cloud")
    allowed: list[str] | None = policies.get("machine_types")
    return Context(
        cloud=Cloud(cloud) if cloud in list(Cloud) else None,
        environment=str(fleet.get("environment", "")),
        region=str(config.get(f"{cloud}:region", "")),
        today=today,
        allowed_machine_types=frozenset(allowed) if allowed is not None else None,
        usd_per_month=_money(budget, "usd_per_month"),
        usd_per_hour_at_max=_money(budget, "usd_per_hour_at_max"),
        config=config,
        model_gib=_weights(fleet),
        model_sources={str(m.get("name")): str(m.get("source", "")) for m in _maps(fleet, "models")},
        waivers=tuple(_waiver(index, raw) for index, raw in enumerate(_maps(policies, "exceptions"))),
    )


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ContextError(f"{SETTINGS_KEY}: is no JSON: {error}") from error


def _maps(container: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    return container.get(key) or ()


def _money(budget: Mapping[str, Any], key: str) -> Decimal | None:
    return Decimal(str(budget[key])) if key in budget else None


def _weights(fleet: Mapping[str, Any]) -> dict[str, Decimal]:
    gib = {m.get("name"): m.get("weights_gib") for m in _maps(fleet, "models")}
    return {
        str(pool.get("name")): Decimal(str(gib[pool.get("model")]))
        for pool in _maps(fleet, "pools")
        if gib.get(pool.get("model")) is not None
    }


def _waiver(index: int, raw: Mapping[str, Any]) -> Waiver:
    path = f"policies.exceptions.{index}"
    if missing := [key for key in ("rule", "resource", "owner", "reason", "until") if not raw.get(key)]:
        raise ContextError(f"{path}: lacks {', '.join(missing)}; an exception has an owner, a reason and an end")
    try:
        until = date.fromisoformat(str(raw["until"]))
    except ValueError as error:
        raise ContextError(f"{path}.until: {raw['until']!r} is no date; write it as 2027-03-01") from error
    return Waiver(
        rule=str(raw["rule"]),
        resource=str(raw["resource"]),
        owner=str(raw["owner"]),
        reason=str(raw["reason"]),
        until=until,
    )
