"""`gpufleet settings`: checks a settings file before Pulumi uses it."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from cli import policy_exceptions, settings_image, settings_slices
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from gpufleet.domain import catalogue
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.prices.book import machine_sku
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.settings import KEY, file, reading
from gpufleet.settings.environment import Settings
from gpufleet.settings.file import FileError
from gpufleet.settings.problems import Problem, SettingsError
from stacks import accelerator_checks
from stacks.checks import check as check_values

PREFIX = "Pulumi."

settings_app = typer.Typer(no_args_is_help=True, help="Settings files: check and compare them, print their schema.")

Files = Annotated[list[Path], typer.Argument(help="Settings files, for example stacks/config/Pulumi.aws-prod.yaml.")]


def register(app: typer.Typer) -> None:
    app.add_typer(settings_app, name="settings")


@settings_app.command("check")
def check(files: Files, as_json: JsonOption = False) -> None:
    """Check settings files, and print each error with its path, value and remedy. Exit code 3: errors were found.

    A note names the machine types on which this project was never tried.
    """
    checked = {str(path): _check(path) for path in files}
    found = {path: problems for path, (problems, _) in checked.items()}
    if as_json:
        print_json({path: [asdict(problem) for problem in problems] for path, problems in found.items()})
    else:
        for path, problems in found.items():
            count = f"{len(problems)} error{'s' * (len(problems) != 1)}"
            STDOUT.print(f"{path}: {count if problems else 'valid'}", highlight=False, soft_wrap=True)
            for problem in problems:
                STDOUT.print(f"  {problem}", highlight=False, markup=False, soft_wrap=True)
            for line in () if problems else settings_slices.notes(Path(path)):
                STDOUT.print(f"  note: {line}", highlight=False, markup=False, soft_wrap=True)
            if note := checked[path][1]:
                STDOUT.print(f"  note: {note}", highlight=False, markup=False, soft_wrap=True)
    if any(found.values()):
        raise typer.Exit(Exit.FOUND)


@settings_app.command("schema")
def schema() -> None:
    """Print the JSON Schema of settings files, which editors use for completion and checks."""
    print_json(reading.json_schema())


@settings_app.command("diff")
def diff(
    one: Annotated[Path, typer.Argument(help="Settings file of the first environment.")],
    other: Annotated[Path, typer.Argument(help="Settings file of the second environment.")],
) -> None:
    """Compare the settings files of two environments, setting by setting. Exit code 3: they differ."""
    before, after = (list(_lines(read_config(path))) for path in (one, other))
    changed = [
        line
        for line in difflib.unified_diff(before, after, str(one), str(other), n=0, lineterm="")
        if not line.startswith("@@")
    ]
    for line in changed:
        STDOUT.print(line, highlight=False, markup=False, soft_wrap=True)
    if not changed:
        STDERR.print("the files do not differ")
        return
    raise typer.Exit(Exit.FOUND)


def problems_of(path: Path) -> tuple[Problem, ...]:
    """All problems of a settings file; empty when it is valid. Raises AppError for a file that is not a settings
    file.
    """
    return _check(path)[0]


def _check(path: Path) -> tuple[tuple[Problem, ...], str]:
    """All problems of a settings file, and a note for people. Raises AppError."""
    config = read_config(path)
    today = datetime.now(UTC).date()
    stack = path.stem.removeprefix(PREFIX) if path.name.startswith(PREFIX) else None
    of_form: tuple[Problem, ...] = ()
    try:
        settings = reading.read(config, str(path), stack)
    except SettingsError as error:
        of_form = error.problems
        settings = reading.despite_problems(config)
    if settings is None:
        return of_form, ""
    reported = {problem.path for problem in of_form}
    others = (
        *check_values(settings, today),
        *policy_exceptions.problems(settings, today),
        *_without_price(settings),
        *settings_image.problems(settings),
        *_overdue_reviews(settings, today),
        *_shared_projects(settings, path),
    )
    new = (one for one in others if not any(f"{one.path}.".startswith(f"{place}.") for place in reported))
    return (*of_form, *new), accelerator_checks.not_tried(settings)


def read_config(path: Path) -> Mapping[str, Any]:
    """The `config:` map of a settings file. Raises AppError."""
    try:
        return file.read_config(path)
    except FileError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error


def _lines(value: Any, path: str = "") -> Iterator[str]:
    if is_map(value):
        for key, item in value.items():
            yield from _lines(item, f"{path}.{key}" if path else str(key))
    elif is_list(value):
        for index, item in enumerate(value):
            # pools and models are identified by name, so that a new one does not shift the others
            name = item.get("name", index) if is_map(item) else index
            yield from _lines(item, f"{path}[{name}]")
    else:
        yield f"{path}: {value}"


def _shared_projects(settings: Settings, path: Path) -> Iterator[Problem]:
    """Other environments with the same Google Cloud project, from the settings files next to this one."""
    if settings.cloud is not Cloud.GCP:
        return
    for other in sorted(path.parent.glob(f"{PREFIX}*.yaml")):
        try:
            config = file.read_config(other)
        except FileError:
            continue  # a check of that file reports its errors
        fleet = config.get(KEY)
        if "gcp:project" not in config or not is_map(fleet) or fleet.get("account") != settings.account:
            continue
        name = str(fleet.get("environment"))
        if name == settings.environment:
            continue
        if not settings.shared_project:
            yield Problem(
                path=f"{KEY}.account",
                wrong=f"is also the project of environment {name} ({other.name})",
                value=settings.account,
                remedy="use a separate project for each environment; `shared_project: true` allows a shared one, and"
                " then each control host can resize the groups of both (docs/security.md)",
            )
        elif name.startswith(f"{settings.environment}-") or settings.environment.startswith(f"{name}-"):
            yield Problem(
                path=f"{KEY}.environment",
                wrong=f"shares a project with {name} ({other.name}), and one name begins with the other and a hyphen",
                value=settings.environment,
                remedy="rename one: permissions on instances are limited by a prefix of their names",
            )


def _without_price(settings: Settings) -> Iterator[Problem]:
    """Machine types without a price in this region, if the packaged lists contain the region."""
    here = PackagedPrices().skus(settings.region)
    if not here:
        return
    stated = {price.sku for price in settings.prices}
    known = {machine.name for machine in catalogue.machines(settings.cloud)}
    for place, name, kind in _machine_types(settings):
        if name not in known:
            continue  # another check reports it
        sku = machine_sku(settings.cloud, name, kind)
        # the lists have no prices of AWS spot and of flex-start: a type without a list price is not sold as these
        # either
        unlisted = kind is CapacityType.FLEX_START or settings.cloud is Cloud.AWS
        listed = sku.replace(f":{kind}", ":on-demand") if unlisted else sku
        if listed in here or sku in stated:
            continue
        as_spot = "as spot " if kind is CapacityType.SPOT else ""
        yield Problem(
            path=f"{KEY}.pools.{place}",
            wrong=f"has no price {as_spot}in {settings.region} in the packaged list, "
            "so its cost is unknown and it may not be sold there",
            value=name,
            remedy=f"choose {_similar_types(settings, here, kind, name)}, or state its price under prices",
        )


def _overdue_reviews(settings: Settings, today: date) -> Iterator[Problem]:
    """Reservations whose review date has passed.

    The check reports them, and the program does not: a deployment must not wait for a review.
    """
    for place, pool in enumerate(settings.pools):
        for number, reserved in enumerate(pool.capacity.reserved):
            if reserved.review_by is not None and reserved.review_by <= today:
                yield Problem(
                    path=f"{KEY}.pools.{place}.capacity.reserved.{number}.review_by",
                    wrong="is in the past",
                    value=reserved.review_by.isoformat(),
                    remedy="check whether the reservation is still used, then write the date of the next review",
                )


def _machine_types(settings: Settings) -> Iterator[tuple[str, str, CapacityType]]:
    """Yield the path below `pools` of each priced machine type, its name and the capacity type of its price."""
    for index, pool in enumerate(settings.pools):
        # some machine types are sold only as prepaid blocks
        blocks = {f"reserved.{number}.machine_type" for number, one in enumerate(pool.capacity.reserved) if one.block}
        for place, kind, name in pool.capacity.machine_type_fields():
            if place not in blocks:
                priced = CapacityType.ON_DEMAND if kind is CapacityType.RESERVED else kind
                yield f"{index}.capacity.{place}", name, priced


def _similar_types(settings: Settings, here: tuple[str, ...], kind: CapacityType, name: str) -> str:
    wanted = catalogue.machine(settings.cloud, name)
    priced = CapacityType.ON_DEMAND if kind is CapacityType.FLEX_START else kind
    sold = {sku.split(":")[2] for sku in here if sku.endswith(f":{priced}")}
    alike = [
        machine.name
        for machine in catalogue.machines(settings.cloud)
        if machine.name in sold and machine.gpu_count == wanted.gpu_count
        if machine.accelerator is wanted.accelerator and machine.architecture == wanted.architecture
        if machine.gpu_memory_mib >= wanted.gpu_memory_mib
    ]
    return " or ".join(alike[:3]) or "another machine type"
