"""Reads a settings file: `stacks/config/Pulumi.<cloud>-<environment>.yaml`.

The region is under the cloud's own key (`aws:region`, `gcp:region`), all else under `gpu-fleet:fleet`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gpufleet.domain.model import Cloud
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.settings import KEY
from gpufleet.settings.document.money import Budget, Commitments, PriceOverride
from gpufleet.settings.environment import ModelSettings, Policies, PoolSettings, Settings
from gpufleet.settings.problems import UNKNOWN_KEY, Problem, SettingsError, from_validation


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a settings file, for editors."""
    from gpufleet.settings.schema import SettingsSchema  # only schemas need the sources of the fields

    fleet = Settings.model_json_schema(schema_generator=SettingsSchema)
    definitions = fleet.pop("$defs")
    # The region is under the cloud's own key.
    del fleet["properties"]["region"]
    fleet["required"].remove("region")
    regions = {f"{cloud}:region": {"type": "string"} for cloud in Cloud}
    config = {"type": "object", "required": [KEY], "properties": {**regions, KEY: fleet}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of an environment of gpu-fleet",
        "type": "object",
        "required": ["config"],
        "properties": {"config": config},
        "$defs": definitions,
    }


def read(config: Mapping[str, Any], source: str, stack: str | None = None) -> Settings:
    """Read the settings from the `config:` map of a settings file and validate them. Raises SettingsError.

    `stack`: the stack's name, `<cloud>-<environment>`, to check that file and stack match.
    """
    problems = _unknown_keys(config)
    fleet: Any = config.get(KEY)
    if fleet is None:
        missing = Problem(path=KEY, wrong="is missing", remedy="write the settings of the environment there")
        raise SettingsError(source, problems or (missing,))
    if not is_map(fleet):
        raise SettingsError(source, (Problem(path=KEY, wrong="must be a map", value=fleet),))
    raw = {str(key): value for key, value in fleet.items()}
    if other := _of_another_cloud(raw, config):
        raise SettingsError(source, (other,))
    problems = (*problems, *_region(raw, config), *_stack(raw, stack))
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        raise SettingsError(
            source, (*problems, *_with_new_names(from_validation(error, KEY, model=Settings)))
        ) from error
    if problems:
        raise SettingsError(source, problems)
    return settings


_EMPTY_SECRETS: Final[Mapping[str, Any]] = {"engine_key": "", "orders": {"private_key": "", "public_keys": ()}}
"""Required settings that files of release 0.1 lack."""


def despite_problems(config: Mapping[str, Any]) -> Settings | None:
    """Return settings that `read` refused, so that checks of values report their errors in the same run.

    They lack their unknown keys, and missing names of secrets are empty. None: other values are invalid, too.
    """
    fleet: Any = config.get(KEY)
    if not is_map(fleet):
        return None
    raw: dict[str, Any] = {**_EMPTY_SECRETS, **fleet}
    _region(raw, config)
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        unknown_keys = [item["loc"] for item in error.errors() if item["type"] in UNKNOWN_KEY]
    try:
        return Settings.model_validate(_without(raw, unknown_keys))
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an environment's settings that the policy pack and the plan's cost need.

    The settings can be invalid or from another release: a missing or invalid part gets the default (None or empty).
    """

    cloud: Cloud | None = None
    environment: str = ""
    region: str = ""
    models: tuple[ModelSettings, ...] = ()
    pools: tuple[PoolSettings, ...] = ()
    budget: Budget | None = None
    prices: tuple[PriceOverride, ...] = ()
    commitments: Commitments = Commitments()
    policies: Policies = Policies()
    unknown: tuple[str, ...] = ()
    """Paths of keys that this release does not know and ignores."""
    problems: tuple[Problem, ...] = ()
    """Errors of the parts that cannot be read."""


_PARTS: Final = ("cloud", "environment", "models", "pools", "budget", "prices", "commitments", "policies")


def parts(config: Mapping[str, Any]) -> Parts:
    """Return the readable parts of a stack's configuration in the engine's format: JSON as text.

    Raises SettingsError if the settings are missing or not a map.
    """
    fleet = _decoded(config.get(KEY))
    unknown = [f"{KEY}.{key}" for key in fleet if key not in Settings.model_fields]
    problems: list[Problem] = []
    found: dict[str, Any] = {}
    for name in _PARTS:
        if name not in fleet:
            continue
        try:
            found[name] = _part(name, fleet[name], unknown)
        except ValidationError as error:
            problems += from_validation(error, KEY, name)
    region: Any = config.get(f"{found.get('cloud')}:region")
    return Parts(**found, region=str(region or ""), unknown=tuple(unknown), problems=tuple(problems))


def _decoded(fleet: Any) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(fleet) if isinstance(fleet, str) else fleet
    except (ValueError, RecursionError) as error:
        raise SettingsError(KEY, (Problem(path=KEY, wrong=f"is not JSON: {error}"),)) from error
    if found is None:
        raise SettingsError(KEY, (Problem(path=KEY, wrong="is missing"),))
    if not is_map(found):
        raise SettingsError(KEY, (Problem(path=KEY, wrong="must be a map", value=found),))
    return found


def _part(name: str, value: Any, unknown: list[str]) -> Any:
    """Read one value of the settings without its unknown keys. Raises ValidationError."""
    field = Settings.model_fields[name]
    adapter = TypeAdapter[Any](field.rebuild_annotation())
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        unknown_keys = [item["loc"] for item in error.errors() if item["type"] in UNKNOWN_KEY]
        if not unknown_keys:
            raise
    unknown += [".".join(map(str, (KEY, name, *place))) for place in unknown_keys]
    return adapter.validate_python(_without(value, unknown_keys))


def _without(value: Any, places: list[tuple[int | str, ...]]) -> Any:
    """Return a copy of a map or list without the values at these paths."""
    removed = {place[0] for place in places if len(place) == 1}

    def below(step: int | str) -> list[tuple[int | str, ...]]:
        return [place[1:] for place in places if len(place) > 1 and place[0] == step]

    if is_map(value):
        return {key: _without(item, below(key)) for key, item in value.items() if key not in removed}
    if is_list(value):
        return [_without(item, below(index)) for index, item in enumerate(value)]
    return value


_NEW_NAMES: Final[Mapping[str, str]] = {
    "agent_token": "orders and engine_key replace it since release 0.2: `gpufleet bootstrap` creates both secrets and"
    " prints what to write (docs/security.md)"
}
"""Setting of an earlier release, and what replaces it."""


def _with_new_names(problems: Iterable[Problem]) -> Iterator[Problem]:
    for problem in problems:
        name = problem.path.removeprefix(f"{KEY}.")
        yield replace(problem, remedy=_NEW_NAMES[name]) if name in _NEW_NAMES else problem


def _unknown_keys(config: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return problems for other keys with our prefix: their values would have no effect."""
    return tuple(
        Problem(path=key, wrong="is not a known setting", remedy=f"did you mean {KEY}?")
        for key in map(str, config)
        if key.startswith("gpu-fleet:") and key != KEY
    )


def _of_another_cloud(raw: Mapping[str, Any], config: Mapping[str, Any]) -> Problem | None:
    """Return a problem if region and fleet name different clouds; otherwise each value would be an error."""
    cloud = raw.get("cloud")
    regions = [cloud for cloud in Cloud if f"{cloud}:region" in config]
    if cloud not in list(Cloud) or not regions or cloud in regions:
        return None
    wrong = f"is {cloud}, but the file sets {regions[0]}:region"
    remedy = f"write cloud: {regions[0]}, or start from a settings file for {cloud}"
    return Problem(path=f"{KEY}.cloud", wrong=wrong, value=cloud, remedy=remedy)


def _region(raw: dict[str, Any], config: Mapping[str, Any]) -> list[Problem]:
    """Move the region from the cloud's own key into the settings; return the problems."""
    key = f"{raw.get('cloud')}:region"
    if "region" in raw:
        return [Problem(path=f"{KEY}.region", wrong="is not a known setting", remedy=f"write {key} next to {KEY}")]
    region: Any = config.get(key)
    raw["region"] = region if isinstance(region, str) else ""
    if raw["region"] or raw.get("cloud") not in list(Cloud):
        return []
    if region in (None, ""):
        return [Problem(path=key, wrong="is missing", remedy=f"write the region there, next to {KEY}")]
    return [Problem(path=key, wrong="must be text", value=region, remedy="write one region, such as us-east-1")]


def _stack(raw: Mapping[str, Any], stack: str | None) -> list[Problem]:
    named = f"{raw.get('cloud')}-{raw.get('environment')}"
    if stack is None or stack == named or raw.get("cloud") not in list(Cloud):
        return []
    wrong = f"is inconsistent: environment and cloud give {named}, but the stack is {stack}"
    remedy = f"correct them, or use the file for stack {named}"
    return [Problem(path=f"{KEY}.environment", wrong=wrong, remedy=remedy)]
