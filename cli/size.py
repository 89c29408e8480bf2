"""`gpufleet size`: whether a model fits, on which GPUs, and with which engine arguments."""

import shlex
from typing import Annotated, Any

import typer

from app.errors import AppError, ErrorCode
from app.sizing import fits, load_model
from cli.options import JsonOption
from cli.output import STDERR, STDOUT, Exit, print_json
from serving.sizing.decoding import prefix_caching, speculation
from serving.sizing.fit import GIB, Fit, FitRequest
from serving.sizing.model import ModelShape, Weights
from serving.sizing.validity import ENGINE, not_modelled

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Folder or URL of the model: s3://bucket/models/chat, gs://…. Only file headers are read, not weights."
    ),
]
KvFp8Option = Annotated[
    bool, typer.Option("--kv-fp8", help="Store the KV cache in 8-bit floating point, which halves its size.")
]
Fp8Option = Annotated[bool, typer.Option("--fp8", help="Quantize 16-bit weights to FP8 while the engine loads them.")]
EngineOption = Annotated[
    str, typer.Option("--engine", help="The engine of the pool. Engines differ in memory and speed.")
]


def check_engine(engine: str) -> None:
    """Raise AppError for an engine that sizing does not model."""
    if (why := not_modelled(engine)) is not None:
        raise AppError(f"--engine: {why}", ErrorCode.WRONG_USE)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("size")(size)


def size(
    model: ModelArgument,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A GPU (L4) or a machine type (g6.xlarge); repeatable. Default: all GPUs."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            min=1,
            help="Longest request, input and output, in tokens. Default: the model's limit, at most 8192.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Number of concurrent requests of that length.")
    ] = 1,
    kv_fp8: KvFp8Option = False,
    fp8: Fp8Option = False,
    speculate: Annotated[
        bool,
        typer.Option(
            "--speculate",
            help="Use speculative decoding, with the model's own draft layers or else with n-grams of the prompt. It "
            "reduces latency at low load and throughput at full load.",
        ),
    ] = False,
    engine: EngineOption = ENGINE,
    as_json: JsonOption = False,
) -> None:
    """Compute whether a model fits on GPUs: its weights, KV cache and concurrency. Exit code 3: it fits on none."""
    check_engine(engine)
    shape, heavy = load_model(model)
    request = FitRequest(
        context=context or min(shape.max_context, 8192),
        concurrency=concurrency,
        kv_fp8=kv_fp8,
        weights_fp8=fp8,
        speculate=speculate,
    )
    rows = [_row(name, answer) for name, answer in fits(shape, heavy, gpu or (), request)]
    if as_json:
        print_json({"model": _facts(shape, heavy), "engine": engine, "context": request.context, "fits": rows})
    else:
        _show(shape, heavy, rows)
    if not any(row["fits"] for row in rows):
        raise typer.Exit(Exit.FOUND)


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


def _facts(model: ModelShape, heavy: Weights) -> dict[str, Any]:
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


def _show(model: ModelShape, heavy: Weights, rows: list[dict[str, Any]]) -> None:
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
