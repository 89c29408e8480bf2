"""`gpufleet size`: does a model fit, where, and with which arguments."""

import shlex
from typing import Annotated, Any

import typer

from app.errors import AppError, Code
from app.stores import Place, open_place
from cli.output import STDERR, STDOUT, Exit, print_json
from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import Gpu, UnknownMachineError
from gpufleet.domain.model import Cloud
from serving.cache.manifest import ManifestError
from serving.cache.sync import served_digest
from serving.sizing import families
from serving.sizing.decoding import prefix_caching, speculation
from serving.sizing.fit import GIB, Fit, Wish, smallest_fit
from serving.sizing.model import Model, SizingError, Weights, weigh
from serving.sizing.source import read_config, read_tensors

ModelArgument = Annotated[
    str, typer.Argument(help="A model's folder, or its URL: s3://bucket/models/chat, gs://…; only headers are read.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("size")(size)


def size(
    model: ModelArgument,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A GPU (L4) or machine type (g6.xlarge); repeatable. Default: all."),
    ] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Longest request in tokens.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests of that length at once.")] = 1,
    kv_fp8: Annotated[bool, typer.Option("--kv-fp8", help="Keys and values in 8 bits.")] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="Quantize 16-bit weights to FP8 while loading.")] = False,
    speculate: Annotated[
        bool,
        typer.Option(
            "--speculate",
            help="Draft tokens ahead, by the model's own layers for it or else by n-grams of the prompt: answers "
            "come sooner while few run at once; a full GPU does less.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Weights, KV cache and concurrency of a model on GPUs. Exit 3 when it fits on none that was asked for."""
    shape, heavy = load_model(model)
    wish = Wish(
        context=context or min(shape.max_context, 8192),
        concurrency=concurrency,
        kv_fp8=kv_fp8,
        weights_fp8=fp8,
        speculate=speculate,
    )
    try:
        rows = [
            _row(name, smallest_fit(shape, heavy, device, count, wish)) for name, device, count in _targets(gpu or [])
        ]
    except SizingError as error:
        raise AppError(str(error), Code.WRONG_USE) from error
    if as_json:
        print_json({"model": _facts(shape, heavy), "context": wish.context, "fits": rows})
    else:
        _show(shape, heavy, rows)
    if not any(row["fits"] for row in rows):
        raise typer.Exit(Exit.FOUND)


def load_model(url: str) -> tuple[Model, Weights]:
    """Shape and weights of a model. Raises AppError."""
    place = open_place(url)
    try:
        inside = _inside(place)
        shape = families.read(read_config(place.store, inside))
        return shape, weigh(read_tensors(place.store, inside))
    except FileNotFoundError as error:
        raise AppError(f"{url}: {error}; a model's folder has config.json and safetensors") from error
    except (SizingError, OSError) as error:
        raise AppError(f"{url}: {error}") from error


class _Inside:
    """Keys of a model's files: in a folder of their own, or as the bucket has its served revision."""

    def __init__(self, place: Place, folder: str) -> None:
        self._place, self._folder = place, folder

    def __call__(self, name: str) -> str:
        return self._place.key(f"{self._folder}{name}")


def _inside(place: Place) -> _Inside:
    try:
        digest = served_digest(place.store, place.prefix or ".")
    except (OSError, ManifestError):
        return _Inside(place, "")
    return _Inside(place, f"{digest}/files/")


def _targets(names: list[str]) -> list[tuple[str, Gpu, int]]:
    """What to try: name, GPU and how many of them."""
    if not names:
        return [(name, catalogue.gpu(name), 8) for name in _all_gpus()]
    return [_target(name) for name in names]


def _target(name: str) -> tuple[str, Gpu, int]:
    for cloud in Cloud:
        try:
            machine = catalogue.machine(cloud, name)
        except UnknownMachineError:
            continue
        if machine.gpu_share != 1:
            raise AppError(f"{name}: has a fraction of a GPU, which is not sized here", Code.WRONG_USE)
        return name, catalogue.gpu(machine.gpu), machine.gpu_count
    try:
        return name, catalogue.gpu(name), 8
    except UnknownMachineError as error:
        raise AppError(f"{error}; a machine type like g6.xlarge will do, too", Code.WRONG_USE) from error


def _all_gpus() -> list[str]:
    used = {machine.gpu for machine in catalogue.machines() if machine.gpu_share == 1}
    found: list[str] = []
    for name in sorted(used):
        try:
            catalogue.gpu(name)
        except UnknownMachineError:
            continue
        found.append(name)
    return sorted(found, key=lambda name: catalogue.gpu(name).memory_mib)


def _row(name: str, answer: Fit) -> dict[str, Any]:
    plan = answer.kv_layout
    return {
        "on": name,
        "gpu": answer.gpu,
        "gpus": answer.split.gpus,
        "fits": answer.fits,
        "reason": answer.reason,
        "weights_gib_per_gpu": round(answer.weights_bytes / GIB, 3),
        "overhead_gib_per_gpu": round(answer.overhead_bytes / GIB, 3),
        "overhead_is": "estimated",
        "kv_cache_gib_per_gpu": round(answer.kv_bytes / GIB, 3),
        "kv_blocks": None if plan is None else plan.blocks(answer.kv_bytes),
        "concurrency": None if answer.concurrency is None else round(answer.concurrency, 2),
        "engine_args": list(answer.options.arguments()),
        "notes": list(answer.notes),
    }


def _facts(model: Model, heavy: Weights) -> dict[str, Any]:
    prefixes, drafts = prefix_caching(model), speculation(model)
    return {
        "family": model.family,
        "parameters": heavy.parameters,
        "weights_bytes": heavy.total,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "layers": model.layer_count,
        "max_context": model.max_context,
        "prefix_caching": {"on": prefixes.on, "reason": prefixes.reason},
        "speculative_decoding": {"method": drafts.method, "tokens": drafts.tokens, "reason": drafts.reason},
    }


def _show(model: Model, heavy: Weights, rows: list[dict[str, Any]]) -> None:
    STDERR.print(
        f"{model.family}: {heavy.parameters / 1e9:.2f} billion parameters, {heavy.total / GIB:.2f} GiB of weights, "
        f"{model.layer_count} layers, context {model.max_context}",
        highlight=False,
    )
    prefixes, drafts = prefix_caching(model), speculation(model)
    STDERR.print(f"prefix caching {'on' if prefixes.on else 'off'}: {prefixes.reason}", highlight=False)
    possible = f"{drafts.method} with --speculate" if drafts.method else "none"
    STDERR.print(f"speculative decoding {possible}: {drafts.reason}", highlight=False)
    for row in rows:
        mark = "yes" if row["fits"] else "no "
        STDOUT.print(f"{mark}  {row['gpus']} × {row['on']}: {row['reason']}", highlight=False, markup=False)
        if row["fits"]:
            STDOUT.print(f"       {shlex.join(row['engine_args'])}", highlight=False, markup=False, soft_wrap=True)
        for note in row["notes"]:
            STDOUT.print(f"       note: {note}", highlight=False, markup=False)
