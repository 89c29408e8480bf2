"""Collects the roles that the program grants on Google Cloud, with placeholders for values that differ between
environments.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpufleet.settings import KEY
from policies.iam.google import CUSTOM_ROLE, place
from policies.resource import Resource
from scripts.policy_lists.program import Program


def of(program: Program) -> dict[str, Any]:
    """Return the lists. `bindings`: role, member and condition by kind of resource. `custom_roles`: permissions by
    role id.
    """
    given: dict[str, dict[str, Mapping[str, str]]] = {}
    roles: dict[str, set[str]] = {}
    for config, made in program.plans:
        for resource in made if config[KEY]["cloud"] == "gcp" else ():
            if resource.type == CUSTOM_ROLE:
                name = _replaced(str(resource.at("roleId")), config)
                roles.setdefault(name, set()).update(resource.at("permissions"))
            elif (where := place(resource.type)) is not None:
                entry = _entry(resource, config)
                given.setdefault(where, {})[json.dumps(entry, sort_keys=True)] = entry
    return {
        "bindings": {where: [entry for _, entry in sorted(found.items())] for where, found in given.items()},
        "custom_roles": {name: sorted(permissions) for name, permissions in roles.items()},
    }


def _entry(resource: Resource, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the properties of a binding. The condition is reduced to its expression."""
    entry = {**resource.props}
    condition = entry.pop("condition", None)
    if condition is not None:
        entry["condition"] = condition["expression"]
    return {key: _replaced(value, config, is_secret=key == "secretId") for key, value in entry.items()}


def _replaced(value: str, config: Mapping[str, Any], *, is_secret: bool = False) -> str:
    fleet = config[KEY]
    if is_secret:
        return "{enginekey}" if value == fleet["engine_key"] else "{secret}"
    environment = fleet["environment"]
    pairs = (
        (fleet["bucket"]["name"], "{bucket}"),
        (f"@{fleet['account']}.", "@{project}."),
        (f"projects/{fleet['account']}/", "projects/{project}/"),
        (f"gpu-fleet-{environment}-", "gpu-fleet-{environment}-"),
        (f"gpu_fleet_{environment.replace('-', '_')}_", "gpu_fleet_{underscored}_"),
        (f'"{environment}-', '"{environment}-'),
    )
    if value == fleet["account"]:
        return "{project}"
    for name, placeholder in pairs:
        value = value.replace(name, placeholder)
    return value
