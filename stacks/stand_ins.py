"""Fits something plausible in for each value of the wrong form, so that all else is still looked at: people want to
see everything that is wrong at once."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from gpufleet.domain.model import Cloud

Place = tuple[str | int, ...]

_DIGEST: Final = "image@sha256:" + "0" * 64
_OF_CLOUD: Final[Mapping[Cloud, Mapping[str, str]]] = {
    Cloud.AWS: {
        "account": "000000000000",
        "machine_image": "ami-00000000000000000",
        # the largest there is, so that nothing is said of its size
        "machine_type": "p6-b300.48xlarge",
        "small": "t3.medium",
        "zone": "a",
    },
    Cloud.GCP: {
        "account": "stand-in",
        "machine_image": "projects/stand-in/global/images/stand-in",
        "machine_type": "a4-highgpu-8g",
        "small": "e2-medium",
        "zone": "-a",
    },
}


def repair(raw: Mapping[str, Any], cloud: Cloud, wrong: Sequence[tuple[Place, bool]]) -> dict[str, Any]:
    """The settings with something of the right form at each wrong place; optional things that are wrong are left out.

    `wrong`: place, and whether the key itself is unknown.
    """
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    sample = _sample(cloud, str(raw.get("region") or ""))
    for place, is_unknown in wrong:
        _mend(result, sample, place, is_unknown=is_unknown)
    if any(place[:1] == ("zones",) for place, _ in wrong):
        result["zones"] = list(dict.fromkeys([*_zones(result), *(result.get("zones") or [])]))
    if any(place[:1] == ("models",) for place, _ in wrong):
        known = [model["name"] for model in result["models"]]
        asked = {str(pool["model"]) for pool in result["pools"] if pool.get("model") not in known}
        result["models"] += [{**sample["models"][0], "name": name} for name in sorted(asked)]
    return result


def _mend(at: Any, sample: Any, place: Place, *, is_unknown: bool) -> None:
    """Walk to the place; below an optional part whose sample is unknown, the part itself goes."""
    step, rest = place[0], place[1:]
    known: Any = None
    if isinstance(step, int) and isinstance(sample, list):
        known = cast("list[Any]", sample)[0]
    elif isinstance(step, str) and isinstance(sample, dict):
        known = cast("dict[str, Any]", sample).get(step)
    inside: Any = at[step] if _has(at, step) else None
    if rest and known is not None and isinstance(inside, dict | list):
        _mend(cast("Any", inside), known, rest, is_unknown=is_unknown)
    elif known is not None and not is_unknown:
        at[step] = copy.deepcopy(known)
    elif _has(at, step):
        del at[step]


def _has(at: Any, step: str | int) -> bool:
    if isinstance(at, dict):
        return step in at
    return isinstance(at, list) and isinstance(step, int) and step < len(cast("list[Any]", at))


def _zones(settings: Mapping[str, Any]) -> list[str]:
    """Every zone that pools name."""
    found: list[Any] = []
    for pool in settings["pools"]:
        capacity: dict[str, Any] = pool["capacity"]
        found += [reserved["zone"] for reserved in capacity.get("reserved") or ()]
        for kind in ("spot", "on_demand"):
            part: dict[str, Any] = capacity.get(kind) or {}
            found += part.get("zones") or []
        flex_start: dict[str, Any] = capacity.get("flex_start") or {}
        found += [flex_start["zone"]] if "zone" in flex_start else []
    return [zone for zone in found if isinstance(zone, str)]


def _sample(cloud: Cloud, region: str) -> dict[str, Any]:
    of = _OF_CLOUD[cloud]
    zone, machine = region + of["zone"], of["machine_type"]
    return {
        "cloud": cloud.value,
        "environment": "stand-in",
        "region": region,
        "account": of["account"],
        "zones": [zone],
        "network": {"kind": "made", "cidr": "10.0.0.0/16"},
        "bucket": {"name": "stand-in"},
        "agent_token": "stand-in",
        "machines": {"image": of["machine_image"], "dcgm_image": _DIGEST},
        "models": [{"name": "stand-in", "source": "hf://stand/in", "weights_gib": 0.001}],
        "control": {"machine_type": of["small"], "image": of["machine_image"]},
        "pools": [
            {
                "name": "stand-in",
                "model": "stand-in",
                "engine": {"image": _DIGEST},
                "owner": "stand-in",
                "target": 1,
                "min": 0,
                "max": 10_000,
                "capacity": {
                    "reserved": [{"zone": zone, "machine_type": machine, "count": 1, "ends": "9999-01-01"}],
                    "spot": {"zones": [zone], "machine_types": [machine]},
                    "on_demand": {"max": 1, "machine_types": [machine], "zones": [zone]},
                    "flex_start": {"max": 1, "machine_type": machine, "zone": zone, "run": "1d"},
                },
                "drain_deadline": "90s",
                "watchdogs": {"spot": {}},
            }
        ],
    }
