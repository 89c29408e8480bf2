"""The shipped settings, with values changed, and what is said of them."""

import copy
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from gpufleet.settings.problems import SettingsError
from stacks import reading

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 21)
FLEET = "gpu-fleet:fleet"
REMOVED = object()


def file(stack: str) -> dict[str, Any]:
    path = ROOT / "stacks" / "config" / f"Pulumi.{stack}.yaml"
    config: dict[str, Any] = yaml.safe_load(path.read_text())["config"]
    return config


AWS, GCP = file("aws-prod"), file("gcp-prod")


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with values set at paths below `gpu-fleet:fleet`; a path from the root begins with a slash."""
    result = copy.deepcopy(config)
    for path, value in changes.items():
        *way, last = path[1:].split("/") if path.startswith("/") else [FLEET, *path.split(".")]
        at: Any = result
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        key: Any = int(last) if isinstance(at, list) else last
        if value is REMOVED:
            del at[key]
        elif isinstance(at, list) and key == len(at):
            at.append(value)
        else:
            at[key] = value
    return result


def a_pool(name: str, **changes: Any) -> dict[str, Any]:
    """A pool of the right form, which buys nothing unless `capacity` says so."""
    shipped: dict[str, Any] = AWS[FLEET]["pools"][0]
    return {**copy.deepcopy(shipped), "spare": 0, "capacity": {}, "name": name, **changes}


def said(config: dict[str, Any], stack: str | None = None) -> list[str]:
    """Every problem as people read it."""
    try:
        reading.parse(config, "file", TODAY, stack)
    except SettingsError as error:
        return [str(problem) for problem in error.problems]
    return []
