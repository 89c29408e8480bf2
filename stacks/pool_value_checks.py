"""Checks of single values of a pool beyond their form: sizes, deadlines, secrets, ids of purchased capacity."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.durations import render as render_duration
from gpufleet.domain.model import Cloud
from gpufleet.domain.secrets import find_secrets, names_secret
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import Problem
from serving.engine_container import find_launch
from serving.engines import CONTRACTS
from serving.engines.launch import MAX_ADAPTERS, ArgumentError, check_environment, wrong_adapters

_SWITCHES: Final = frozenset({"", "0", "1", "true", "false"})
"""Values that switch an option on or off (`HF_HUB_DISABLE_IMPLICIT_TOKEN=1`). They are not secrets, whatever the
variable's name.
"""
MAX_STOP_DEADLINE: Final = timedelta(hours=2) - timedelta(seconds=60)
"""Maximum drain time. A lifecycle hook of AWS waits two hours at most; one minute is margin."""
FOR_WEIGHTS: Final = 0.9
"""Share of GPU memory that engines use by default, at most about this. The weights must fit into it."""
_REQUESTED: Final = re.compile(r"[A-Za-z0-9][\w./:-]{0,119}", re.ASCII)
"""A model name in requests, as routers accept it."""
_NOT_REQUESTED: Final = "is not a name that requests can use"
_REQUESTED_REMEDY: Final = "write letters, digits and . _ / : - without spaces, and begin with a letter or digit"
_SECRET_REMEDY: Final = "remove it and change the secret; engines load models from the bucket and need no secret"


def check(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Yield the problems of single values of one pool."""
    yield from _sizes(pool, path)
    yield from _times(settings, pool, path)
    yield from _environment(pool, path)
    yield from _secret_arguments(pool, path)
    yield from _split(settings, pool, path)
    yield from _existing_reservations(settings, pool, path)
    yield from _served_name(settings, pool, path)
    yield from _adapters(settings, pool, path)


def _sizes(pool: PoolSettings, path: str) -> Iterator[Problem]:
    if pool.spare > pool.max:
        yield Problem(path=f"{path}.spare", wrong=f"is above max {pool.max}", value=pool.spare, remedy="lower it")
    on_demand = pool.capacity.on_demand
    if on_demand is not None and on_demand.max > pool.max:
        yield Problem(
            path=f"{path}.capacity.on_demand.max",
            wrong=f"is above the pool's max {pool.max}",
            value=on_demand.max,
            remedy="lower it, or raise the pool's max",
        )


def _times(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    deadline, where = pool.drain_deadline, f"{path}.drain_deadline"
    if not deadline:
        remedy = "write the time that running requests may take, for example 90s"
        yield Problem(path=where, wrong="must be above 0s", value="0s", remedy=remedy)
    elif deadline > MAX_STOP_DEADLINE and settings.cloud is Cloud.AWS:
        wrong = "is longer than a lifecycle hook of AWS can wait, two hours less one minute"
        yield Problem(path=where, wrong=wrong, value=render_duration(deadline), remedy="write 119m or less")
    idle = pool.watchdogs.idle
    if idle is not None and not idle.window:
        remedy = "write the time for which an instance must be idle, for example 30m"
        yield Problem(path=f"{path}.watchdogs.idle.window", wrong="must be above 0s", value="0s", remedy=remedy)
    elif idle is not None:
        yield from _engine_window(pool.engine.kind, idle.window, f"{path}.watchdogs.idle.window")
    spot = pool.watchdogs.spot
    if spot is not None and spot.price_ceiling > 1:
        yield Problem(
            path=f"{path}.watchdogs.spot.price_ceiling",
            wrong="is above 1, the on-demand price; it is a share of that price",
            value=str(spot.price_ceiling),
            remedy='write a share from 0 to 1, for example "0.9"',
        )


def _engine_window(engine: str, window: timedelta, path: str) -> Iterator[Problem]:
    """Report a window over which the engine's numbers prove nothing: the idle watchdog would end no instance."""
    contract = CONTRACTS.get(engine)
    if contract is not None and window < contract.evidence.window:
        least = render_duration(contract.evidence.window)
        yield Problem(
            path=path,
            wrong=f"is too short: the metrics of {contract.title} prove idleness over {least} or more",
            value=render_duration(window),
            remedy=f"write {least} or more",
        )


def engine_problem(path: str, error: ArgumentError, value: str) -> Problem:
    """Return the problem and the remedy for an invalid argument or variable of an engine, as the error describes
    them.
    """
    wrong, _, remedy = str(error).partition(": ")[2].partition("; ")
    return Problem(path=path, wrong=wrong, value=value, remedy=remedy or "write flags such as --max-model-len")


def _environment(pool: PoolSettings, path: str) -> Iterator[Problem]:
    launch = find_launch(pool.engine.kind)
    for name, value in pool.engine.env.items():
        where = f"{path}.engine.env.{name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            remedy = "write letters, digits and underscores, and do not begin with a digit"
            yield Problem(path=where, wrong="is not a name of a variable", value=name, remedy=remedy)
        elif kinds := find_secrets(value):
            # the value is not shown, because it may be a secret
            yield Problem(path=where, wrong=f"looks like {kinds[0]}", remedy=_SECRET_REMEDY)
        elif names_secret(name) and value.lower() not in _SWITCHES:
            yield Problem(path=where, wrong="is a variable for a secret", remedy=_SECRET_REMEDY)
        elif any(ord(character) < 32 for character in value):
            wrong = "contains a control character"
            yield Problem(path=where, wrong=wrong, value=value, remedy="write one line of text")
        elif launch is not None:
            try:
                check_environment(launch, (name,))
            except ArgumentError as error:
                yield engine_problem(where, error, name)


def _secret_arguments(pool: PoolSettings, path: str) -> Iterator[Problem]:
    for index, argument in enumerate(pool.engine.args):
        if kinds := find_secrets(argument):
            yield Problem(path=f"{path}.engine.args.{index}", wrong=f"looks like {kinds[0]}", remedy=_SECRET_REMEDY)


def _split(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Report a model that is split over more GPUs than one machine has. With EFA, a model may span several
    machines.
    """
    launch = find_launch(pool.engine.kind)
    wanted = None if launch is None else _gpus(pool.engine.args, launch.splits)
    if wanted is None or pool.network == "efa":
        return
    index, gpus = wanted
    for name in pool.capacity.machine_types:
        try:
            machine = catalogue.machine(settings.cloud, name)
        except catalogue.UnknownMachineError:
            continue  # other checks of the pool report it
        model = next((model for model in settings.models if model.name == pool.model), None)
        if machine.gpu_count < gpus and (model is None or model.weights_gib <= weights_space_gib(machine)):
            yield Problem(
                path=f"{path}.engine.args.{index}",
                wrong=f"splits the model over {gpus} GPUs, and {name} has {machine.gpu_count}",
                value=pool.engine.args[index],
                remedy=f"choose machine types with at least {gpus} GPUs, or split the model over fewer",
            )
            return


def weights_space_gib(machine: catalogue.MachineType) -> float:
    """Return the GPU memory of a machine that weights may use, in GiB."""
    return machine.total_gpu_memory_mib * FOR_WEIGHTS / 1024


def _gpus(args: Sequence[str], splits: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the index of the first flag that splits the model, and the number of GPUs over which all flags split
    it.
    """
    found: dict[str, tuple[int, int]] = {}
    for index, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name in splits:
            ways = value if equals else args[index + 1] if index + 1 < len(args) else ""
            # nine digits already exceed every limit; Python refuses to parse thousands of digits
            found[splits[name]] = (index, int(ways[:9]) if ways.isascii() and ways.isdigit() else 1)
    gpus = 1
    for _, count in found.values():
        gpus *= count
    return (min(index for index, _ in found.values()), gpus) if found else None


def _existing_reservations(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Check existing reservations: each needs an id in the form of that cloud, and its own group."""
    earlier: dict[str, str] = {}
    for other in settings.pools:
        places = [(other.name, reserved.existing) for reserved in other.capacity.reserved]
        if other is pool:
            break
        earlier |= {existing: name for name, existing in places if existing}
    for index, reserved in enumerate(pool.capacity.reserved):
        where = f"{path}.capacity.reserved.{index}.existing"
        if reserved.existing is None:
            continue
        form = r"cr-[0-9a-f]+" if settings.cloud is Cloud.AWS else r"[A-Za-z0-9][\w./:-]*"
        if not re.fullmatch(form, reserved.existing):
            kind, remedy = "id", "write its id, for example cr-0123456789abcdef0"
            if settings.cloud is Cloud.GCP:
                kind, remedy = "name", "write its name"
            wrong = f"is not a valid reservation {kind}"
            yield Problem(path=where, wrong=wrong, value=reserved.existing, remedy=remedy)
        elif reserved.existing in earlier:
            yield Problem(
                path=where,
                wrong=f"is already used by pool {earlier[reserved.existing]}",
                value=reserved.existing,
                remedy="use each reservation in one pool",
            )
        earlier[reserved.existing] = pool.name


def _served_name(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    asked = pool.served_name if pool.served_name is not None else pool.model
    if not _REQUESTED.fullmatch(asked):
        yield Problem(path=f"{path}.served_name", wrong=_NOT_REQUESTED, value=asked, remedy=_REQUESTED_REMEDY)
        return
    launch = find_launch(pool.engine.kind)
    if launch is not None and launch.name_is_folder and not re.fullmatch(r"\w[\w.-]*", asked, re.ASCII):
        wrong = f"is not a name under which {CONTRACTS[pool.engine.kind].title} serves a model"
        remedy = "write letters, digits and . _ - and begin with a letter or a digit"
        yield Problem(path=f"{path}.served_name", wrong=wrong, value=asked, remedy=remedy)
        return
    for other in settings.pools:
        if other is pool:
            return
        if (other.served_name or other.model) == asked and other.model != pool.model:
            yield Problem(
                path=f"{path}.served_name",
                wrong=f"is also the served name of pool {other.name}, which serves {other.model}, not {pool.model}",
                value=asked,
                remedy="write another name, or serve the same model in both pools",
            )
            return


def _adapters(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Check the number of adapters, their names in requests, and the models that they name."""
    served = pool.served_name or pool.model
    if len(pool.adapters) > MAX_ADAPTERS:
        wrong = f"has {len(pool.adapters)} adapters, and an instance loads at most {MAX_ADAPTERS}"
        yield Problem(path=f"{path}.adapters", wrong=wrong, remedy="use several pools")
    known = {model.name for model in settings.models}
    launch = find_launch(pool.engine.kind)
    engine_errors = {} if launch is None else dict(wrong_adapters(launch, served, pool.adapters))
    for name, model in pool.adapters.items():
        where = f"{path}.adapters.{name}"
        if not _REQUESTED.fullmatch(name):
            yield Problem(path=where, wrong=_NOT_REQUESTED, value=name, remedy=_REQUESTED_REMEDY)
        elif name in engine_errors:
            yield engine_problem(where, engine_errors[name], name)
        elif model not in known:
            wrong = f"is not one of the models {', '.join(sorted(known))}"
            yield Problem(path=where, wrong=wrong, value=model, remedy="write one of them, or add it to models")
        elif model == pool.model:
            wrong = f"is the model of pool {pool.name} itself"
            yield Problem(path=where, wrong=wrong, value=model, remedy="write the name of an adapter")
        elif (other := _other_use(settings, pool, name)) is not None:
            yield Problem(path=where, wrong=f"is also {other}", value=name, remedy="write another name")


def _other_use(settings: Settings, pool: PoolSettings, name: str) -> str | None:
    """Return another use of this name for another model, or None. Of two pools, the later one errs."""
    for other in settings.pools:
        if (other.served_name or other.model) == name:
            return f"the served name of pool {other.name}"
    for other in settings.pools[: settings.pools.index(pool)]:
        if name in other.adapters and (other.adapters[name], other.model) != (pool.adapters[name], pool.model):
            return f"an adapter of pool {other.name}, with another model"
    return None
