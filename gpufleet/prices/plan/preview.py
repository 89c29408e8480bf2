"""Reads `pulumi preview --json --show-sames`: the present and the planned resources."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from gpufleet.domain.parsed import json_problem

UNKNOWN: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""The placeholder that the engine writes for a value that is known only after `pulumi up`."""

LEAVES: Final = frozenset({"delete", "delete-replaced", "discard", "discard-replaced"})
"""Operations that remove the resource of their step."""


READS: Final = frozenset({"read", "read-replacement", "read-discard"})
"""Operations that read a resource."""


class PreviewError(ValueError):
    """The text is not a complete preview. The message names the problem and the command to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResource:
    """One resource: the inputs from the Pulumi program, and the last outputs from the cloud."""

    type: str
    name: str
    urn: str
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    depends: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Maps properties to the URNs from which their values come."""
    provider: str = ""
    """URN of its provider; empty for a component."""
    is_read: bool = False
    """Whether it is only read, and not managed by the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A plan: its configuration, and the resources before and after it."""

    config: Mapping[str, Any]
    before: tuple[PlannedResource, ...]
    after: tuple[PlannedResource, ...]


def parse(text: str | bytes) -> Preview:
    """Read a preview. Raises PreviewError."""
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PreviewError(
            f"the preview {json_problem(text, error)}; create it with `pulumi preview --json --show-sames`"
        ) from error
    digest = as_map(raw)
    if "steps" not in digest:
        raise PreviewError("the preview has no `steps`; create it with `pulumi preview --json --show-sames`")
    notes = [as_map(note) for note in as_list(digest.get("diagnostics"))]
    if errors := [str(note.get("message")).strip() for note in notes if note.get("severity") == "error"]:
        raise PreviewError("the preview failed: " + "; ".join(errors[:3]))
    steps = [as_map(step) for step in as_list(digest["steps"])]
    for kind, stated in as_map(digest.get("changeSummary")).items():
        shown = sum(step.get("op") == kind for step in steps)
        if isinstance(stated, int) and shown >= stated:
            continue
        if kind == "same":
            raise PreviewError(
                "the preview omits unchanged resources, so its cost is too low; create it with --show-sames"
            )
        raise PreviewError(
            f"the preview has {shown} of {stated} steps `{kind}`, so it is incomplete; create it again"
        )
    try:
        return Preview(
            config=as_map(digest.get("config")),
            before=_states(steps, "oldState"),
            after=_states([step for step in steps if step.get("op") not in LEAVES], "newState"),
        )
    except KeyError as error:
        raise PreviewError(
            f"a step has no {error}; create the preview with `pulumi preview --json --show-sames`"
        ) from error


def _states(steps: Sequence[Mapping[str, Any]], key: str) -> tuple[PlannedResource, ...]:
    # a replacement lists the same resource in three steps; the last step of a URN applies
    found = {str(step["urn"]): _declared(step, as_map(step[key])) for step in steps if step.get(key)}
    return tuple(found.values())


def _declared(step: Mapping[str, Any], state: Mapping[str, Any]) -> PlannedResource:
    old = as_map(step.get("oldState"))
    return PlannedResource(
        type=str(state["type"]),
        name=str(step["urn"]).rsplit("::", 1)[-1],
        urn=str(step["urn"]),
        inputs=as_map(state.get("inputs")),
        outputs={**_id(state, old), **(as_map(state.get("outputs")) or as_map(old.get("outputs")))},
        depends=as_map(state.get("propertyDependencies")),
        # a reference to a provider is its URN and its id
        provider=str(step.get("provider") or "").rpartition("::")[0],
        is_read=step.get("op") in READS,
    )


def _id(*states: Mapping[str, Any]) -> Mapping[str, Any]:
    """The id of the resource, because not every provider has it among the outputs."""
    found = [state["id"] for state in states if state.get("id")]
    return {"id": found[0]} if found else {}


def as_map(value: Any) -> Mapping[str, Any]:
    """A JSON object, or an empty one for anything else."""
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """A JSON list, or an empty one for anything else."""
    return cast(list[Any], value) if isinstance(value, list) else []
