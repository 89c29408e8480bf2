"""Settings from a settings file, with everything that is wrong with it, before any resource is declared.

A settings file is `stacks/config/Pulumi.<cloud>-<environment>.yaml`: the region under the cloud's own key
(`aws:region`, `gcp:region`), everything else under `gpu-fleet:fleet`.
"""

from collections.abc import Collection, Mapping
from datetime import date
from functools import cache
from typing import Any, Final

import pulumi
from pydantic import ValidationError

from gpufleet.domain.model import Cloud
from gpufleet.domain.parsed import is_map
from stacks import stand_ins
from stacks.checks import check
from stacks.problems import Problem, SettingsError, from_validation, in_file
from stacks.settings import KEY, Settings


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a settings file, for editors."""
    fleet = Settings.model_json_schema()
    definitions = fleet.pop("$defs")
    # the region stands under the cloud's own key
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


@cache
def _schema() -> dict[str, Any]:
    return Settings.model_json_schema()


def load(config: pulumi.Config, stack: str, today: date) -> Settings:
    """The settings of this stack. Raises SettingsError that lists everything wrong with them."""
    values: dict[str, Any] = {KEY: config.get_object("fleet")}
    for cloud in Cloud:
        if region := pulumi.Config(cloud.value).get("region"):
            values[f"{cloud}:region"] = region
    return parse(values, f"Pulumi.{stack}.yaml", today, stack)


def parse(config: Mapping[str, Any], source: str, today: date, stack: str | None = None) -> Settings:
    """Settings from the `config:` map of a settings file. Raises SettingsError.

    `stack`: the stack's name, `<cloud>-<environment>`, to see that file and stack belong together.
    """
    fleet: Any = config.get(KEY)
    strays = _strays(config)
    if fleet is None:
        missing = Problem(path=KEY, wrong="is missing", remedy="write the environment there")
        raise SettingsError(source, strays or (missing,))
    if not is_map(fleet):
        raise SettingsError(source, (Problem(path=KEY, wrong="is no map", value=fleet, remedy=_AS_LOCAL),))
    raw = {str(key): value for key, value in fleet.items()}
    if other := _of_another_cloud(raw, config):
        raise SettingsError(source, (other,))
    problems = [*strays, *_region(raw, config), *_stack(raw, stack)]
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        problems += from_validation(error, KEY, _schema())
        problems += _beside(raw, config, error, today)
        raise SettingsError(source, tuple(problems)) from error
    problems += check(settings, today)
    if problems:
        raise SettingsError(source, tuple(problems))
    return settings


_AS_LOCAL: Final = "write the environment there, as the settings of aws-local show"


def _strays(config: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Keys of ours beside the one that we read: what stands there would count for nothing."""
    return tuple(
        Problem(path=key, wrong="is no key of ours", remedy=f"did you mean {KEY}?")
        for key in map(str, config)
        if key.startswith("gpu-fleet:") and key != KEY
    )


def _of_another_cloud(raw: Mapping[str, Any], config: Mapping[str, Any]) -> Problem | None:
    """A file whose region is of one cloud and whose fleet says another: else every value would be wrong."""
    said = raw.get("cloud")
    regions = [cloud for cloud in Cloud if f"{cloud}:region" in config]
    if said not in list(Cloud) or not regions or said in regions:
        return None
    wrong = f"says {said}, and the region of the file is {regions[0]}:region"
    remedy = f"write cloud: {regions[0]}, or begin with a file of {said}"
    return Problem(path=f"{KEY}.cloud", wrong=wrong, value=said, remedy=remedy)


def _region(raw: dict[str, Any], config: Mapping[str, Any]) -> list[Problem]:
    """Moves the region from the cloud's own key into the settings."""
    key = f"{raw.get('cloud')}:region"
    if "region" in raw:
        return [Problem(path=f"{KEY}.region", wrong="has no place here", remedy=f"write {key} beside {KEY}")]
    region: Any = config.get(key)
    raw["region"] = region if isinstance(region, str) else ""
    if raw["region"] or raw.get("cloud") not in list(Cloud):
        return []
    if region in (None, ""):
        return [Problem(path=key, wrong="is missing", remedy=f"write the region there, beside {KEY}")]
    return [Problem(path=key, wrong="is no text", value=region, remedy="write one region, as us-east-1")]


def _stack(raw: Mapping[str, Any], stack: str | None) -> list[Problem]:
    said = f"{raw.get('cloud')}-{raw.get('environment')}"
    if stack is None or stack == said or raw.get("cloud") not in list(Cloud):
        return []
    wrong = f"and cloud say {said}, but the stack is {stack}"
    remedy = f"correct them, or use the file for stack {said}"
    return [Problem(path=f"{KEY}.environment", wrong=wrong, remedy=remedy)]


def _beside(raw: Mapping[str, Any], config: Mapping[str, Any], error: ValidationError, today: date) -> list[Problem]:
    """What is wrong between the values that have the right form: people want to see all at once."""
    said = [raw.get("cloud"), *(cloud for cloud in Cloud if f"{cloud}:region" in config)]
    cloud = next((Cloud(name) for name in said if name in list(Cloud)), None)
    if cloud is None:
        return []
    bad: set[stand_ins.Place] = set()
    kept: dict[str, Any] = {**raw, "region": raw.get("region") or str(config.get(f"{cloud}:region") or "")}
    for _ in range(_MENDS):
        wrong = [(in_file(item["loc"]), item["type"] == "extra_forbidden") for item in error.errors()]
        bad |= {place for place, _ in wrong}
        kept = stand_ins.repair(kept, cloud, wrong)
        try:
            found = check(Settings.model_validate(kept), today)
        except ValidationError as again:
            error = again
            continue
        return [problem for problem in found if not _of_stand_ins(problem.path, bad)]
    return []


_MENDS: Final = 3
"""Something of the right form can show that another place is wrong."""


def _of_stand_ins(path: str, bad: Collection[stand_ins.Place]) -> bool:
    """Whether a problem is at, above or below a place that was filled in."""
    for place in bad:
        filled = ".".join([KEY, *map(str, place[:1] if place[0] == "zones" else place)])
        if path == filled or path.startswith(f"{filled}.") or filled.startswith(f"{path}."):
            return True
    return False
