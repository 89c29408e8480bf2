"""What the rules must know of the environment in addition to its resources. It comes from the stack's settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpufleet.domain.model import Cloud
from gpufleet.domain.parsed import is_map
from gpufleet.settings import KEY

if TYPE_CHECKING:
    from gpufleet.settings.environment import PolicyException


class ContextError(ValueError):
    """No settings can be read. The message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One environment. Limits that are absent are not checked, and the pack reports which."""

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
    """Size of the weights of each pool's model in GiB, by pool name."""
    model_sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source of each model, by model name."""
    exceptions: "tuple[PolicyException, ...]" = ()
    unknown: tuple[str, ...] = ()
    """Paths of settings that this release does not know and ignores."""
    problems: tuple[str, ...] = ()
    """Reasons why parts of the settings could not be read. Checks that depend on these parts do not run."""

    @property
    def is_prod(self) -> bool:
        return self.environment == "prod"

    @property
    def fleet(self) -> str:
        """The settings as JSON, even if parts of them could not be read (see `written`)."""
        value = self.config.get(KEY)
        return value if isinstance(value, str) else json.dumps(value, default=str)


@lru_cache(maxsize=8)
def written(fleet: str) -> Mapping[str, Any]:
    """Return the settings as written. Errors in other parts do not affect the names in them. Empty if the settings
    are not a map.
    """
    try:
        found: Any = json.loads(fleet)
    except ValueError:
        return {}
    return found if is_map(found) else {}


def from_config(config: Mapping[str, Any], today: date) -> Context:
    """Return the context of a stack's configuration. The engine passes values as text that contains JSON.

    Raises ContextError. Resources can be checked without settings, so a missing map gives an empty context.
    """
    # pydantic and the settings model would double the import time of the rules
    from gpufleet.settings.problems import SettingsError
    from gpufleet.settings.reading import parts

    if config.get(KEY) is None:
        return Context(today=today)
    try:
        settings = parts(config)
    except SettingsError as error:
        raise ContextError(str(error)) from error
    budget, allowed = settings.budget, settings.policies.machine_types
    gib = {model.name: Decimal(str(model.weights_gib)) for model in settings.models}
    return Context(
        cloud=settings.cloud,
        environment=settings.environment,
        region=settings.region,
        today=today,
        allowed_machine_types=frozenset(allowed) if allowed is not None else None,
        usd_per_month=budget and budget.usd_per_month,
        usd_per_hour_at_max=budget and budget.usd_per_hour_at_max,
        config=config,
        model_gib={pool.name: gib[pool.model] for pool in settings.pools if pool.model in gib},
        model_sources={model.name: model.source for model in settings.models},
        exceptions=settings.policies.exceptions,
        unknown=settings.unknown,
        problems=tuple(map(str, settings.problems)),
    )
