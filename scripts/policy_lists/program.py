"""Runs the Pulumi program for the whole matrix of settings with mocked engine responses, and records its
resources.
"""

import asyncio
import inspect
import json
import runpy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any, Final, cast

import pulumi
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs

from gpufleet.domain.parsed import is_list, is_map
from gpufleet.settings import KEY
from policies.resource import Resource
from scripts.policy_lists.matrix import ROOT, settings

STACK: Final = "pulumi:pulumi:Stack"
SUFFIX: Final = "3f2a1b0"
"""Simulates the suffix that Pulumi appends to a name that the program does not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that the program creates."""

    plans: Sequence[tuple[Mapping[str, Any], tuple[Resource, ...]]]
    """The configuration of each stack of the matrix, and its resources with URNs in the engine's format."""
    lines: frozenset[tuple[str, int]]
    """File (relative to the repository) and line of each call that created a resource."""

    @property
    def resources(self) -> Iterator[Resource]:
        """Yield the resources of all stacks."""
        for _, made in self.plans:
            yield from made


@cache
def run() -> Program:
    """Run the program for each stack of the matrix, once. It takes seconds.

    Raises pulumi.RunError if settings of the matrix contain errors.
    """
    lines: set[tuple[str, int]] = set()
    with _makers(lines):
        plans = [(config, plan(stack, config)) for stack, config in settings()]
    return Program(plans=plans, lines=frozenset(lines))


def plan(stack: str, config: Mapping[str, Any]) -> tuple[Resource, ...]:
    """Return the resources that the program declares for one stack's configuration. Raises pulumi.RunError."""
    _with_event_loop()
    monitor = _Monitor(_Answers(config))
    pulumi.runtime.set_mocks(monitor.mocks, project="gpu-fleet", stack=stack, preview=False, monitor=monitor)
    pulumi.runtime.set_all_config({k: v if isinstance(v, str) else json.dumps(v) for k, v in config.items()})
    _played(_program)()
    return tuple(monitor.made)


_played: Final = cast(Callable[[Callable[[], None]], Callable[[], None]], vars(pulumi.runtime)["test"])
"""Wraps a function so that it waits for all resources that it declares."""


def _program() -> None:
    runpy.run_path(str(ROOT / "stacks"), run_name="__main__")


class _Answers(pulumi.runtime.Mocks):
    """Simulates the outputs of each resource that the program uses. Names and ARNs have a cloud's format."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._account: str = config[KEY]["account"]
        self._region: str = config.get("aws:region", "")

    def new_resource(self, args: MockResourceArgs) -> tuple[str, dict[str, Any]]:
        inputs = cast(Mapping[str, Any], args.inputs)  # pyright: ignore[reportUnknownMemberType]
        name = str(inputs.get("name") or f"{args.name}-{SUFFIX}")
        if args.typ == "gcp:projects/iAMCustomRole:IAMCustomRole":
            name = f"projects/{self._account}/roles/{inputs['roleId']}"
        outputs = {
            "name": name,
            "arn": self._arn(args.typ, name),
            "email": f"{inputs.get('accountId')}@{self._account}.iam.gserviceaccount.com",
            "latestVersion": 1,
            "selfLink": args.name,
        }
        return f"{args.name}-id", {**outputs, **inputs}

    def _arn(self, type_: str, name: str) -> str:
        service, kind = _ARNS.get(type_, (type_.split(":")[1].partition("/")[0], ""))
        region = "" if service == "iam" else self._region
        return f"arn:aws:{service}:{region}:{self._account}:{kind}{name}"

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], None]:
        return {}, None


_ARNS: Final = {
    "aws:cloudwatch/eventRule:EventRule": ("events", "rule/"),
    "aws:iam/instanceProfile:InstanceProfile": ("iam", "instance-profile/"),
}
"""Service and kind in ARNs of types with a different name, for the types that the program uses in policies."""


@dataclass
class _Monitor(MockMonitor):
    """Records resources in the form in which policies receive them: URNs with the types of all parents, properties,
    dependencies.
    """

    mocks: pulumi.runtime.Mocks
    made: list[Resource] = field(default_factory=list[Resource])

    def __post_init__(self) -> None:
        super().__init__(self.mocks)

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        within = parent.split("::")[2] if parent else STACK
        kind = type_ if within == STACK else f"{within}${type_}"
        return f"urn:pulumi:{pulumi.get_stack()}::{pulumi.get_project()}::{kind}::{name}"

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        answer: Any = super().RegisterResource(request)  # pyright: ignore[reportUnknownMemberType]
        if request.type != STACK:
            self.made.append(
                Resource(
                    type=request.type,
                    name=request.name,
                    props=_plain(rpc.deserialize_properties(request.object)),
                    urn=answer.urn,
                    depends={key: tuple(found.urns) for key, found in request.propertyDependencies.items()},
                )
            )
        return answer


def _plain(value: Any) -> Any:
    """Return properties without secret markers."""
    if is_map(value):
        if rpc.is_rpc_secret(value):
            return _plain(value["value"])
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if is_list(value) else value


def _with_event_loop() -> None:
    """Set an event loop for the thread, because resources create futures in it."""
    try:
        asyncio.get_event_loop_policy().get_event_loop()  # pyright: ignore[reportDeprecated]
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())


@contextmanager
def _makers(lines: set[tuple[str, int]]) -> Generator[None]:
    """Record the line of every call in this repository that created a resource."""
    root, made = f"{ROOT}/", pulumi.Resource.__init__

    def watched(self: pulumi.Resource, *args: Any, **named: Any) -> None:
        frame: FrameType | None = inspect.currentframe()
        while frame := frame and frame.f_back:
            file = frame.f_code.co_filename
            if file.startswith(root):
                lines.add((file.removeprefix(root), frame.f_lineno))
        made(self, *args, **named)

    pulumi.Resource.__init__ = watched
    try:
        yield
    finally:
        pulumi.Resource.__init__ = made
