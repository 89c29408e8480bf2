"""`gpufleet import`: adopts an existing group into a pool."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from app import adoption_files
from app.adoption import Adoption, compare, groups_of, on_google
from app.errors import AppError, ErrorCode
from cli.files import write_json, write_text
from cli.options import JsonOption
from cli.output import STDOUT, Exit, print_json
from cli.settings import PREFIX, read_config
from gpufleet.clouds.aws.calls import LOGIN, NOT_ALLOWED, NOT_LOGGED_IN, AwsCalls
from gpufleet.clouds.aws.existing_groups import ACTIONS, AwsExistingGroups
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import SettingsError
from stacks import reading


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_group)


def import_group(  # noqa: PLR0913, PLR0917 - options
    group: Annotated[str, typer.Option("--group", help="Name of the existing Auto Scaling group.")],
    pool: Annotated[str, typer.Option("--pool", help="Pool of the settings that takes it over.")],
    settings: Annotated[Path, typer.Option("--settings", help="Settings file, such as Pulumi.aws-prod.yaml.")],
    write: Annotated[
        bool, typer.Option("--write", help="Write the setting `adopt`, and the file for `pulumi import`.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--import-file", help="File for `pulumi import`. Default: import-POOL-KEY.json here."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file for `pulumi import`.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what changes if a pool takes over an existing group, without replacing the group or an instance.

    Only reads from the cloud. Exit code 3: the group cannot be adopted, and each reason is listed with its code.
    """
    values = _settings(settings)
    wanted = next((one for one in values.pools if one.name == pool), None)
    if wanted is None:
        names = ", ".join(one.name for one in values.pools)
        raise AppError(f"--pool: {settings} has no pool {pool}; its pools are {names}", ErrorCode.WRONG_USE)
    found = _compared(values, wanted, group)
    place = out or Path(f"import-{pool}-{found.key}.json")
    if write and found.key is not None and not found.refusals:
        # the settings last: they make `pulumi up` expect the group
        with settings.open(encoding="utf-8", newline="") as file:  # keeps the line ends
            text = file.read()
        changed = adoption_files.with_adopted(text, pool, found.key, group)
        document = adoption_files.import_file(found)
        _check_free(place, document, force=force)
        write_json(document, place)
        write_text(changed, settings)
    if as_json:
        print_json(asdict(found))
    else:
        _show(found)
        if not found.refusals:
            _show_next(found, settings, place, written=write)
    if found.refusals:
        raise typer.Exit(Exit.FOUND)


def _check_free(place: Path, document: Mapping[str, Any], *, force: bool) -> None:
    """Raise AppError for a file with other content than the document, unless the user forces it."""
    if force or not place.is_file():
        return
    try:
        is_same = json.loads(place.read_text("utf-8")) == document
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        raise AppError(
            f"--import-file: {place} exists: choose another file, or replace it with --force", ErrorCode.WRONG_USE
        )


def _settings(path: Path) -> Settings:
    config = read_config(path)
    stack = path.stem.removeprefix(PREFIX) if path.name.startswith(PREFIX) else None
    try:
        return reading.parse(config, str(path), datetime.now(UTC).date(), stack)
    except SettingsError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error


def _compared(settings: Settings, pool: PoolSettings, group: str) -> Adoption:
    if settings.cloud is not Cloud.AWS:
        return on_google(pool.name, group)
    source = AwsExistingGroups(AwsCalls(settings.region))
    try:
        if (account := source.account()) != settings.account:
            raise AppError(
                f"the credentials belong to account {account}, but the settings state {settings.account}: use a"
                f" profile of account {settings.account} (AWS_PROFILE)",
                ErrorCode.WRONG_USE,
            )
        existing = source.read(group)
        siblings = source.of_pool(settings.environment, pool.name)
    except CloudError as error:
        raise AppError(f"{error}{_remedy(error)}") from error
    return compare(existing, groups_of(settings, pool), siblings)


def _remedy(error: CloudError) -> str:
    if error.code in NOT_LOGGED_IN:
        return f"; {LOGIN}"
    return f"; the command needs {', '.join(ACTIONS)}" if error.code in NOT_ALLOWED else ""


def _show(found: Adoption) -> None:
    if found.refusals:
        _print(f"{found.group} cannot be adopted into pool {found.pool}:")
        for one in found.refusals:
            _print(f"  {one.code}: {one.detail}; {one.remedy}")
        return
    _print(f"{found.group} becomes the group {found.key} of pool {found.pool}. `pulumi up` then changes:")
    width = max(len(one.field) for one in found.changes)
    for one in found.changes:
        _print(f"  {one.field.ljust(width)}  {one.before} -> {one.after}")
    _print(
        f"Its running instances ({found.instances}) keep their tags and their launch template, until"
        " `gpufleet rollout` replaces them."
    )


def _show_next(found: Adoption, settings: Path, place: Path, *, written: bool) -> None:
    if not written:
        _print("Nothing is written. --write writes the setting and the file for `pulumi import`.")
        return
    stack = shlex.quote(settings.stem.removeprefix(PREFIX))
    file = shlex.quote(str(place))
    _print(f"Wrote `adopt` of pool {found.pool} into {settings}, and {place}. Then:")
    _print(f"  pulumi import --file {file} --stack {stack} --protect=false --generate-code=false")
    _print(f"  pulumi preview --diff --stack {stack}    # an update of the group, no replacement")
    _print(f"  pulumi up --stack {stack}")
    _print(f"  gpufleet pause {found.pool} --until-resumed --reason adoption    # on the control host")
    _print(f"  gpufleet rollout {found.pool} --apply && gpufleet resume {found.pool}")


def _print(line: str) -> None:
    STDOUT.print(line, highlight=False, soft_wrap=True)
