"""Tags as AWS writes them (lists of Key and Value) and as programs write them (maps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.provider.resource import Change
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties


def tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    """A map of tags as a list of Key and Value."""
    return [{"Key": k, "Value": v} for k, v in sorted((tags or {}).items())]


def tag_map(cloud: Cloud, tags: Sequence[Mapping[str, Any]] | Mapping[str, str] | None) -> dict[str, str]:
    """Tags as a map, without the cloud's own and those that the provider's settings ignore."""
    if tags is None:
        return {}
    pairs: list[tuple[str, str]] = (
        [*tags.items()] if isinstance(tags, Mapping) else [(t["Key"], t["Value"]) for t in tags]
    )
    settings = cloud.session.settings
    return {
        k: v
        for k, v in pairs
        if not k.startswith("aws:")
        and k not in settings.ignored_keys
        and not k.startswith(settings.ignored_prefixes or "\0")
    }


def tag_changes(change: Change) -> tuple[dict[str, str], list[str]]:
    """Tags to write, and keys to remove."""
    old: Properties = change.old.get("tags") or {}
    new: Properties = change.new.get("tags") or {}
    return {k: v for k, v in new.items() if old.get(k) != v}, sorted(old.keys() - new.keys())


def ec2_specification(kind: str, tags: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """TagSpecifications of an EC2 request; empty without tags, as EC2 refuses an empty list of tags."""
    return [{"ResourceType": kind, "Tags": tag_list(tags)}] if tags else []


def ec2_tags(cloud: Cloud, ident: str) -> dict[str, str]:
    """Tags of an EC2 resource, read separately: not every description shows the current tags."""
    filters = [{"Name": "resource-id", "Values": [ident]}]
    return tag_map(cloud, cloud.client("ec2").describe_tags(Filters=filters)["Tags"])


def update_ec2_tags(cloud: Cloud, ident: str, change: Change) -> None:
    """Write changed tags of an EC2 resource."""
    if not change.touches("tags"):
        return
    put, remove = tag_changes(change)
    if remove:
        cloud.client("ec2").delete_tags(Resources=[ident], Tags=[{"Key": k} for k in remove])
    if put:
        cloud.client("ec2").create_tags(Resources=[ident], Tags=tag_list(put))
