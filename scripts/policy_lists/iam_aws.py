"""Collects what AWS policies of the program allow, with placeholders for values that differ between environments."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from gpufleet.settings import KEY
from policies.iam.documents import attached, documents, statements
from policies.iam.required_denials import BUCKET_POLICY
from policies.resource import Resource
from scripts.policy_lists.program import SUFFIX, Program

_REGISTRY: Final = re.compile(r"\b([0-9]{12})\.dkr\.ecr\.")


def of(program: Program) -> dict[str, Any]:
    """Return the lists. `documents`: entries by kind of document; each is one action on one resource, with principals
    and conditions. `denied`: denials of the bucket's policy. `managed`: attached policies of AWS. `unknown`:
    documents with values that only the cloud knows.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    managed: set[str] = set()
    denied: dict[str, Mapping[str, Any]] = {}
    unknown: dict[str, set[str]] = {}
    for config, made in program.plans:
        if config[KEY]["cloud"] != "aws":
            continue
        names = _Names.of(config)
        for resource in made:
            for kind, entry in _entries(resource):
                found.setdefault(kind, []).append(names.replaced(entry))
            for path in (document.path for document in documents(resource) if resource.depends.get(document.path)):
                unknown.setdefault(f"{resource.type}.{path}", set()).add(names.text(resource.name))
            denied |= {one["Sid"]: names.replaced(one) for one in _denied(resource)}
            managed |= {names.text(arn) for _, arn in attached(resource)}
    return {
        "denied": [denied[sid] for sid in sorted(denied)],
        "documents": {kind: _needed(entries) for kind, entries in sorted(found.items())},
        "managed": sorted(managed),
        "unknown": {path: sorted(resources) for path, resources in unknown.items()},
    }


def _entries(resource: Resource) -> Iterator[tuple[str, dict[str, Any]]]:
    about = {"service": resource.at("serviceName"), "role": resource.at("role")}
    where = {key: value for key, value in about.items() if value is not None}
    for document in documents(resource) if resource.type.startswith("aws:") else ():
        for statement in statements(document):
            if statement["Effect"] != "Allow":
                continue  # a denial
            # the list may contain only what the pack understands
            if strange := set(statement) - {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}:
                raise ValueError(f"{resource.name}: a statement with {', '.join(sorted(strange))}")
            entry: dict[str, Any] = {**where}
            if "Principal" in statement:
                entry["principal"] = statement["Principal"]
            if "Condition" in statement:
                entry["condition"] = {
                    operator: {key: _listed(values) for key, values in tests.items()}
                    for operator, tests in statement["Condition"].items()
                }
            for action in _listed(statement["Action"]):
                for thing in _listed(statement.get("Resource", "")):
                    on = {"resource": thing} if thing else {}
                    yield document.kind, {"action": action, **on, **entry}


def _denied(resource: Resource) -> Iterator[dict[str, Any]]:
    """Yield the denials of the bucket's policy."""
    for document in documents(resource) if resource.type == BUCKET_POLICY else ():
        for statement in statements(document):
            if statement["Effect"] == "Deny":
                condition = {
                    operator: {key: _listed(values) for key, values in tests.items()}
                    for operator, tests in statement["Condition"].items()
                }
                lists = {key: _listed(statement[key]) for key in ("Action", "Resource")}
                yield {"Sid": statement["Sid"], **lists, "Condition": condition}


def _listed(value: Any) -> list[Any]:
    return list(value) if is_list(value) else [value]


def _needed(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Remove duplicates, and entries that differ from another only by additional conditions."""
    once = {json.dumps(entry, sort_keys=True): entry for entry in entries}
    return [
        entry
        for _, entry in sorted(once.items())
        if not any(other is not entry and _is_wider(other, entry) for other in once.values())
    ]


def _is_wider(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    same = all(one.get(key) == other.get(key) for key in ("action", "resource", "principal", "service", "role"))
    return same and _conditions(one) < _conditions(other)


def _conditions(entry: Mapping[str, Any]) -> set[str]:
    return {
        json.dumps([operator, key, values])
        for operator, tests in entry.get("condition", {}).items()
        for key, values in tests.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The names of one environment and their placeholders, the longest name first."""

    pairs: tuple[tuple[str, str], ...]
    environment: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "_Names":
        fleet = config[KEY]
        account = fleet["account"]
        control: Mapping[str, Any] = fleet.get("control") or {}
        named: Mapping[str, str] = control.get("secrets", {})
        secrets: set[str] = {fleet["orders"]["private_key"], *named.values()} - {fleet["engine_key"]}
        pairs = [
            (fleet["bucket"]["name"], "{bucket}"),
            (f":parameter/{fleet['engine_key'].lstrip('/')}", ":parameter/{enginekey}"),
            *((f":parameter/{secret.lstrip('/')}", ":parameter/{secret}") for secret in secrets),
            *((owner, "{registry}") for owner in _REGISTRY.findall(json.dumps(fleet)) if owner != account),
            *((publisher, "{publisher}") for publisher in fleet["bucket"].get("publishers", ())),
            (account, "{account}"),
            (config["aws:region"], "{region}"),
            (SUFFIX, "{suffix}"),
            (f"gpu-fleet-{fleet['environment']}-", "gpu-fleet-{environment}-"),
        ]
        by_length = sorted(set(pairs), key=lambda pair: (-len(pair[0]), pair))
        return cls(pairs=tuple(by_length), environment=fleet["environment"])

    def text(self, value: str) -> str:
        if value == self.environment:
            return "{environment}"
        for name, placeholder in self.pairs:
            value = value.replace(name, placeholder)
        return value

    def replaced(self, value: Any) -> Any:
        """Return a value with placeholders in its texts. Lists are sorted and have no duplicates."""
        if is_map(value):
            return {self.text(key): self.replaced(item) for key, item in value.items()}
        if is_list(value):
            return sorted({self.text(item) for item in value})
        return self.text(value)
