"""Which commands bring HAProxy's servers in line with the replicas there are. Pure.

A replica appears as DOWN and becomes UP by its own checks. A replica that is gone is taken out in an order that cuts
no stream: agent check off (an answering agent would undo the next step), maint, wait for its requests, delete.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from serving.router.policy import RouterPolicy
from serving.router.pools import backend_for, server_address, server_arguments
from serving.router.runtime import ServerStatus
from serving.router.settings import RouterSettings
from serving.router.topology import Replica

SILENT: Final = frozenset({"L4CON", "L4TOUT", "L6TOUT", "L7TOUT", "L7RSP", "SOCKERR"})
"""Agent checks that brought no answer."""

Key = tuple[str, str]
"""Backend and server."""


class ServerStep(StrEnum):
    """What is done to one server."""

    ADD = "add"
    LEAVE = "leave"
    """Agent check off, no new requests."""
    DELETE = "delete"
    CUT = "cut"
    """End the requests of a machine that is gone for long, or that answers nothing at all."""
    SILENCE = "silence"
    """No new requests: its node agent does not answer."""
    RETURN = "return"
    """It was leaving and is there again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """One step for one server, with the commands that do it."""

    step: ServerStep
    server: str
    """`backend/name`."""
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipState:
    """What the last pass knew; times in seconds of a steady clock."""

    absent_since: Mapping[Key, float] = field(default_factory=dict[Key, float])
    silent_since: Mapping[Key, float] = field(default_factory=dict[Key, float])
    unreachable_since: Mapping[Key, float] = field(default_factory=dict[Key, float])
    leaving: frozenset[Key] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRules:
    """How servers are checked, and how long things may be odd."""

    settings: RouterSettings
    policy: RouterPolicy
    absent: timedelta = timedelta(seconds=0.5)
    """A server that is well leaves only after the inventory was without it this long: clouds forget for a moment.
    One that takes no requests anyway (draining, DOWN) leaves at once."""
    silent: timedelta = timedelta(seconds=30)
    unreachable: timedelta = timedelta(seconds=10)
    """Requests of a machine that answers neither check, with not so much as a refusal, are ended after this: what was
    sent to it on a connection that was open would else wait until the kernel gives up, a quarter of an hour."""
    cut: timedelta = timedelta(minutes=10)
    """Requests of a machine that is gone are ended after this."""


def plan(
    wanted: Iterable[Replica],
    shown: Iterable[ServerStatus],
    memory: MembershipState,
    *,
    rules: MembershipRules,
    now: float,
) -> tuple[tuple[ServerChange, ...], MembershipState]:
    """The changes of this pass, and what the next one has to know."""
    there = {(s.backend, s.name): s for s in shown}
    want = {(backend_for(r, rules.policy), r.name): r for r in wanted}
    keep = {key for key, replica in want.items() if key in there and there[key].address == replica.address}
    absent = {key: memory.absent_since.get(key, now) for key in there if key not in keep}
    silent = {key: memory.silent_since.get(key, now) for key in keep if there[key].agent_status in SILENT}
    leaving = {key for key in memory.leaving if key in there}
    lost = {key: memory.unreachable_since.get(key, now) for key, s in there.items() if s.unreachable and s.sessions}
    changes = [_add(key[0], replica, rules) for key, replica in want.items() if key not in there]
    for key, since in absent.items():
        if change := _depart(there[key], since, key in leaving, rules, now):
            changes.append(change)
            leaving.add(key)
    for key in keep:
        server = there[key]
        if key in leaving:
            changes.append(_return(server))
            leaving.discard(key)
        elif key in silent and now - silent[key] >= rules.silent.total_seconds() and server.ready:
            changes.append(_change(ServerStep.SILENCE, server, f"set server {server.path} state maint"))
    for key, since in lost.items():
        if now - since >= rules.unreachable.total_seconds():
            changes.append(_change(ServerStep.CUT, there[key], f"shutdown sessions server {there[key].path}"))
    return tuple(changes), MembershipState(
        absent_since=absent, silent_since=silent, unreachable_since=lost, leaving=frozenset(leaving)
    )


def _depart(
    server: ServerStatus, since: float, left: bool, rules: MembershipRules, now: float
) -> ServerChange | None:
    waited = now - since
    path = server.path
    if not left or not server.status.startswith("MAINT"):  # an agent's answer on its way may have undone it
        if server.ready and waited < rules.absent.total_seconds():
            return None
        off = (f"disable agent {path}", f"disable health {path}", f"set server {path} state maint")
        # one that serves nobody is gone at once; if a request was faster, HAProxy refuses and a later pass does it
        return _change(ServerStep.LEAVE, server, *off, *([f"del server {path}"] if server.sessions == 0 else []))
    if server.sessions == 0:
        return _change(ServerStep.DELETE, server, f"set server {path} state maint", f"del server {path}")
    if waited >= rules.cut.total_seconds():
        return _change(ServerStep.CUT, server, f"shutdown sessions server {path}")
    return None


def _add(backend: str, replica: Replica, rules: MembershipRules) -> ServerChange:
    path = f"{backend}/{replica.name}"
    arguments = server_arguments(replica, rules.policy.pool(replica.pool), rules.settings)
    return ServerChange(
        step=ServerStep.ADD,
        server=path,
        commands=(
            f"add server {path} {server_address(replica)} {arguments}",
            *_awaken(path),
            f"enable server {path}",
        ),
    )


def _return(server: ServerStatus) -> ServerChange:
    path = server.path
    return _change(ServerStep.RETURN, server, *_awaken(path), f"set server {path} state ready")


def _awaken(path: str) -> tuple[str, ...]:
    """Both checks on, and the server DOWN until both have said that it is well."""
    return (
        f"set server {path} health down",
        f"enable agent {path}",
        f"set server {path} agent down",
        f"enable health {path}",
    )


def _change(step: ServerStep, server: ServerStatus, *commands: str) -> ServerChange:
    return ServerChange(step=step, server=server.path, commands=commands)
