"""What `gpufleet import --write` writes: the setting of the pool, and the file for `pulumi import`."""

from importlib.metadata import version
from typing import Any

import yaml

from app.adoption import Adoption
from app.errors import AppError, ErrorCode
from gpufleet.domain.parsed import is_map
from gpufleet.settings import KEY


def with_adopted(text: str, pool: str, key: str, group: str) -> str:
    """Return the text of a settings file in which a pool adopts a group. Comments, line ends and all other settings
    stay.

    Raises AppError if the file has a form that cannot be changed in place.
    """
    by_hand = AppError(
        f"the settings file cannot be changed in place: add `adopt: {{{key}: {group}}}` to pool {pool} by hand, then"
        " run the command again",
        ErrorCode.WRONG_USE,
    )
    node = _pool_node(yaml.compose(text, Loader=yaml.SafeLoader), pool)
    if node is None or node.flow_style or not node.value:
        raise by_hand
    settings = {name.value: value for name, value in node.value}
    adopted: dict[str, str] = {}
    if (old := settings.get("adopt")) is not None:
        if not isinstance(old, yaml.MappingNode) or not old.flow_style:
            raise by_hand
        adopted = {name.value: value.value for name, value in old.value}
    if (other := adopted.get(key, group)) != group:
        raise AppError(
            f"pool {pool} adopts {other} as {key} already: remove it from `adopt` first", ErrorCode.WRONG_USE
        )
    adopted[key] = group
    shown = yaml.safe_dump(adopted, default_flow_style=True, width=10_000).strip()
    if old is not None:
        changed = text[: old.start_mark.index] + shown + text[old.end_mark.index :]
    else:
        first, value = node.value[0]
        end = text.find("\n", value.end_mark.index)
        if not isinstance(value, yaml.ScalarNode) or end < 0:
            raise by_hand
        end_of_line = "\r\n" if text[end - 1] == "\r" else "\n"
        changed = f"{text[: end + 1]}{' ' * first.start_mark.column}adopt: {shown}{end_of_line}{text[end + 1 :]}"
    if not _differs_only(text, changed, pool, adopted):
        raise by_hand
    return changed


def import_file(adoption: Adoption) -> dict[str, Any]:
    """Return the document for `pulumi import --file`, which adds the group to the stack's state."""
    return {
        "resources": [
            {"type": "gpu-fleet:aws:GpuPool", "name": adoption.pool, "component": True},
            {
                "type": "aws:autoscaling/group:Group",
                "name": f"{adoption.pool}-{adoption.key}",
                "id": adoption.group,
                "parent": adoption.pool,
                # another version would be another provider in the state
                "version": version("pulumi-aws"),
            },
        ]
    }


def _pool_node(node: Any, pool: str) -> yaml.MappingNode | None:
    """The pool's map in the file."""
    for name in ("config", KEY, "pools"):
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == name), None)
    if not isinstance(node, yaml.SequenceNode):
        return None
    for one in node.value:
        if isinstance(one, yaml.MappingNode) and any(k.value == "name" and v.value == pool for k, v in one.value):
            return one
    return None


def _differs_only(before: str, after: str, pool: str, adopted: dict[str, str]) -> bool:
    """Whether the files have the same settings, apart from the groups that the pool adopts."""
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    if not is_map(old):
        return False
    for one in old["config"][KEY]["pools"]:
        if one["name"] == pool:
            one["adopt"] = adopted
    return old == new
