"""Computes the commands that bring HAProxy's servers in line with the existing replicas. Pure.

A new replica starts as DOWN, and its own checks set it UP. A terminated replica is removed in an order that cuts no
stream: agent check off (a responding agent would undo the next step), maint, wait for its requests, delete.
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
"""Agent check results without a response."""

Key = tuple[str, str]
"""Backend and server."""


class ServerStep(StrEnum):
    """A change of one server."""

    ADD = "add"
    LEAVE = "leave"
    """Agent check off, no new requests."""
    DELETE = "delete"
    CUT = "cut"
    """End the requests of a machine that is terminated for a long time, or that does not respond at all."""
    SILENCE = "silence"
    """No new requests, because its node agent does not respond."""
    RETURN = "return"
    """A server that was leaving is back in the inventory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """One step for one server, with the commands that execute it."""

    step: ServerStep
    server: str
    """`backend/name`."""
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipState:
    """State of the last call; times are in seconds of a monotonic clock."""

    absent_since: Mapping[Key, float] = field(default_factory=dict[Key, float])
    silent_since: Mapping[Key, float] = field(default_factory=dict[Key, float])
    unreachable_since: Mapping[Key, float] = field(default_factory=dict[Key, float])
    leaving: frozenset[Key] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRules:
    """How servers are checked, and how long deviations are tolerated."""

    settings: RouterSettings
    policy: RouterPolicy
    absent: timedelta = timedelta(seconds=0.5)
    """A healthy server is removed only after this time without it in the inventory: clouds briefly omit instances.
    A server that takes no requests anyway (draining, DOWN) is removed at once."""
    silent: timedelta = timedelta(seconds=30)
    unreachable: timedelta = timedelta(seconds=10)
    """Time until the requests of a machine are ended that answers neither check, not even with a refusal. Otherwise
    requests on an open connection wait until the kernel gives up, a quarter of an hour."""
    cut: timedelta = timedelta(minutes=10)
    """Time until the requests of a terminated machine are ended."""


def plan(
    wanted: Iterable[Replica],
    shown: Iterable[ServerStatus],
    memory: MembershipState,
    *,
    rules: MembershipRules,
    now: float,
) -> tuple[tuple[ServerChange, ...], MembershipState]:
    """Return the changes to make now, and the state for the next call."""
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
            changes.append(_change(ServerStep.RETURN, server, *_end_maintenance(server.path)))
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
    if not left or not server.status.startswith("MAINT"):  # a late answer of the agent can undo maint
        if server.ready and waited < rules.absent.total_seconds():
            return None
        off = (f"disable agent {path}", f"disable health {path}", f"set server {path} state maint")
        # a server without requests is deleted at once; if one arrives first, HAProxy refuses and a later call deletes
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
            *_end_maintenance(path),
        ),
    )


def _end_maintenance(path: str) -> tuple[str, ...]:
    """Return commands that end the server's maintenance, DOWN until both its checks succeed.

    `health down` comes last: when a server leaves maintenance, HAProxy counts its health checks as passed. An agent
    that responds before the first health check would set the server UP, whether its engine works or not.
    """
    return (
        f"enable agent {path}",
        f"set server {path} agent down",
        f"enable health {path}",
        f"set server {path} state ready",
        f"set server {path} health down",
    )


def _change(step: ServerStep, server: ServerStatus, *commands: str) -> ServerChange:
    return ServerChange(step=step, server=server.path, commands=commands)
