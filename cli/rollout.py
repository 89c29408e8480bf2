"""`gpufleet rollout`: applies a changed machine template to a pool's instances, one at a time, above its floor."""

from datetime import timedelta
from typing import Annotated

import typer

from app import rollout as rollouts
from app.errors import AppError, ErrorCode
from app.fleets import load, pool_of
from cli.options import FleetOption, JsonOption
from cli.output import STDERR, STDOUT, Exit, note, print_json
from gpufleet.clouds.versions import GroupVersion
from gpufleet.domain.durations import parse
from gpufleet.settings.document import Pool


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rollout")(rollout)


def rollout(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Replace outdated instances. Without it, the command only lists them.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop a running rollout. Instances that were replaced are kept.")
    ] = False,
    limit: Annotated[
        str, typer.Option("--limit", help="Longest time for one instance group, for example 2h.")
    ] = "2h",
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a pool's instances that were started from an older template (image, engine or settings).

    Exit code 3: without --apply, at least one instance is outdated.
    """
    document, found = pool_of(load(fleet), pool)
    longest = _parse_limit(limit)
    if cancel:
        rollouts.cancel(document, found)
        STDOUT.print(f"the rollout of {pool} is stopped; run it again to continue", highlight=False)
        return
    versions = rollouts.versions_of(document, found, note)
    outdated = [group for group in found.groups if versions[group.name].outdated]
    if as_json:
        print_json(_described(found, versions))
    else:
        _show(found, versions)
    if not outdated:
        return
    if not apply:
        STDERR.print("This was a dry run: nothing was done. Run it again with --apply to act.")
        raise typer.Exit(Exit.FOUND)
    rollouts.roll(document, found, outdated, longest, note)


def _parse_limit(text: str) -> timedelta:
    try:
        return parse(text)
    except ValueError as error:
        raise AppError(f"--limit: {error}", ErrorCode.WRONG_USE) from error


def _show(pool: Pool, versions: dict[str, GroupVersion]) -> None:
    for group in pool.groups:
        version = versions[group.name]
        STDOUT.print(
            f"{group.name}: template version {version.wanted}, {len(version.current)} current,"
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
