"""`gpufleet rollout`: a changed machine template reaches a pool's instances, one at a time, above its floor."""

import time
from datetime import timedelta
from typing import Annotated, Final

import typer

from app.errors import AppError, Code
from app.fleets import load
from app.wiring import agents_of, inventory_of
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, Exit, print_json
from clouds.aws.calls import AwsCalls
from clouds.aws.rollouts import AwsRollouts
from clouds.versions import GroupVersion
from gpufleet.domain import floors
from gpufleet.domain.activity import CloudError
from gpufleet.domain.durations import parse
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings.document import FleetDocument, GroupEntry, Pool

POLL_S: Final = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rollout")(rollout)


def rollout(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    apply: Annotated[bool, typer.Option("--apply", help="Replace; without it, only say what is outdated.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the rollout that runs; what is new stays.")] = False,
    limit: Annotated[str, typer.Option("--limit", help="Longest time for one group.")] = "2h",
    fleet: FleetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON to stdout.")] = False,
) -> None:
    """Replace a pool's instances that were started from an older template (image, engine, settings)."""
    document, found = _pool(load(fleet), pool)
    longest = _limit(limit)
    try:
        if cancel:
            _cancel(document, found)
            STDOUT.print(f"no rollout of {pool} runs any more; run it again to go on", highlight=False)
            return
        versions = {group.name: _version(document, found, group.name) for group in found.groups}
        outdated = sum(len(version.outdated) for version in versions.values())
        if as_json:
            print_json(_described(found, versions))
        else:
            _show(found, versions)
        if not outdated:
            return
        if not apply:
            STDERR.print("This was a dry run: nothing was done. Run it again with --apply to act.")
            raise typer.Exit(Exit.FOUND)
        _roll_all(document, found, [g for g in found.groups if versions[g.name].outdated], longest)
    except CloudError as error:
        raise AppError(f"rollout of {pool}: {error}") from error


def _version(document: FleetDocument, pool: Pool, group: str) -> GroupVersion:
    match document.cloud:
        case Cloud.AWS:
            return AwsRollouts(AwsCalls(document.region)).version(group)
        case Cloud.GCP:
            from app.rollout_google import rollouts_of

            return rollouts_of(document, pool, _say).version(group)


def _cancel(document: FleetDocument, pool: Pool) -> None:
    match document.cloud:
        case Cloud.AWS:
            rollouts = AwsRollouts(AwsCalls(document.region))
            for group in pool.groups:
                rollouts.cancel(group.name)
        case Cloud.GCP:
            from app.rollout_google import release

            # it runs where somebody started it, and ends with that process
            release(document, pool)


def _roll_all(document: FleetDocument, pool: Pool, groups: list[GroupEntry], limit: timedelta) -> None:
    match document.cloud:
        case Cloud.AWS:
            rollouts = AwsRollouts(AwsCalls(document.region))
            for group in groups:
                _roll(document, pool, group, rollouts, limit)
        case Cloud.GCP:
            from app.rollout_google import paused, rollouts_of

            with paused(document, pool, limit * len(groups)):
                for group in groups:
                    rollouts_of(document, pool, _say).roll(group, limit)


def _limit(text: str) -> timedelta:
    try:
        return parse(text)
    except ValueError as error:
        raise AppError(f"--limit: {error}", Code.WRONG_USE) from error


def _pool(documents: list[FleetDocument], name: str) -> tuple[FleetDocument, Pool]:
    for document in documents:
        for pool in document.pools:
            if pool.name == name:
                return document, pool
    known = ", ".join(pool.name for document in documents for pool in document.pools)
    raise AppError(f"no pool {name!r}; there is {known or 'none'}", Code.WRONG_USE)


def _roll(document: FleetDocument, pool: Pool, group: GroupEntry, rollouts: AwsRollouts, limit: timedelta) -> None:
    launch_first = group.type is not CapacityType.RESERVED
    state = rollouts.state(group.name)
    if state is None or state.is_over:
        if not launch_first:
            _check_floor(document, pool, group)
        rollouts.start(group.name, launch_first=launch_first)
        STDERR.print(f"{group.name}: replacing {'before' if launch_first else 'after'} draining", highlight=False)
    until, said = time.monotonic() + limit.total_seconds(), -1
    while True:
        state = rollouts.state(group.name)
        if state is None:
            raise AppError(f"{group.name}: the refresh that was started is gone")
        if state.percent != said:
            STDERR.print(f"{group.name}: {state.percent} %", highlight=False)
            said = state.percent
        if state.succeeded:
            return
        if state.is_over:
            raise AppError(f"{group.name}: the refresh ended as {state.status}: {state.reason or 'no reason given'}")
        if time.monotonic() > until:
            raise AppError(
                f"{group.name}: not done after {limit}; it goes on in the cloud: run this again to wait for it,"
                f" or `gpufleet rollout {pool.name} --cancel`"
            )
        time.sleep(POLL_S)


def _check_floor(document: FleetDocument, pool: Pool, group: GroupEntry) -> None:
    """Where the old instance must go first, the others must carry the pool's floor."""
    instances = [i for i in inventory_of(document).instances() if i.pool == pool.name and i.alive]
    statuses = agents_of(document).statuses(instances)
    ready = sum(1 for status in statuses.values() if status.get("ready"))
    if (objection := floors.objection(pool.name, pool.min, ready)) is not None:
        raise AppError(f"{group.name}: {objection}")


def _show(pool: Pool, versions: dict[str, GroupVersion]) -> None:
    for group in pool.groups:
        version = versions[group.name]
        STDOUT.print(
            f"{group.name}: wants version {version.wanted}, {len(version.current)} have it,"
            f" {len(version.outdated)} outdated {' '.join(version.outdated)}".rstrip(),
            highlight=False,
            soft_wrap=True,
        )


def _described(pool: Pool, versions: dict[str, GroupVersion]) -> dict[str, object]:
    return {
        "version": 1,
        "pool": pool.name,
        "groups": [
            {"group": v.group, "wanted": v.wanted, "current": list(v.current), "outdated": list(v.outdated)}
            for v in versions.values()
        ],
    }


def _say(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False, soft_wrap=True)
