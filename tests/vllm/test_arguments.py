"""vLLM 0.32's own parser checks every argument list that gpu-fleet gives to vLLM."""

from collections.abc import Iterator
from datetime import date
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind, UnknownMachineError
from gpufleet.toolchain.folders import ROOT
from serving.engines.launch import EngineServer
from serving.engines.vllm import LAUNCH
from serving.sizing import families
from serving.sizing.fit import FitRequest, smallest_fit
from serving.sizing.model import SizingError, weigh
from serving.weights import Tensor
from stacks import reading
from tests.fixtures.engine_options import EVERYTHING
from tests.fixtures.public_models import CONFIGS
from tests.vllm.conftest import Ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STACKS = ROOT / "stacks" / "config"


def command_line(args: tuple[str, ...]) -> list[str]:
    """Return the arguments that the agent gives to `vllm`, without `serve`, which another parser reads."""
    server = EngineServer(
        model_path=PurePosixPath("/mnt/nvme/models/chat"),
        served_name="chat",
        host="10.0.0.1",
        port=8000,
        shutdown_timeout_s=90,
        args=args,
    )
    return list(LAUNCH.arguments(server)[1:])


def of_stacks() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments of all pools of all environments."""
    for file in sorted(STACKS.glob("Pulumi.*.yaml")):
        config: dict[str, Any] = yaml.safe_load(file.read_text())["config"]
        for pool in reading.parse(config, file.name, date(2026, 11, 21)).pools:
            yield f"{file.name}: {pool.name}", command_line(tuple(pool.engine.args))


def of_sizing() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments that sizing returns for public models on every GPU that can be rented."""
    nvidia = (machine for machine in catalogue.machines() if machine.accelerator is AcceleratorKind.NVIDIA)
    gpus = sorted({machine.gpu for machine in nvidia if machine.gpu_share == 1})
    for name, config in CONFIGS.items():
        model = families.read(config)
        heavy = weigh(
            [Tensor(name="model.layers.0.mlp.up_proj.weight", dtype="BF16", shape=(1024, 1024), size=2 << 20)]
        )
        for gpu in gpus:
            for request in (
                FitRequest(context=512, speculate=True),
                FitRequest(context=512, kv_fp8=True, weights_fp8=True),
            ):
                try:
                    found = smallest_fit(model, heavy, catalogue.gpu(gpu), 8, request)
                except (SizingError, UnknownMachineError):
                    continue
                yield f"{name} on {gpu}", command_line(found.options.arguments())


def test_vllm_accepts_every_argument_that_gpu_fleet_gives(ask: Ask) -> None:
    lists = dict([*of_stacks(), *of_sizing(), ("every option", command_line(EVERYTHING.arguments()))])
    wrong = {
        "unknown flag": [*command_line(()), "--no-such-flag"],
        "bad value": [*command_line(()), "--max-num-seqs", "many"],
    }
    answers = dict(
        zip([*lists, *wrong], ask({"arguments": [*lists.values(), *wrong.values()]})["arguments"], strict=True)
    )
    assert {
        name: command_line for name, command_line in answers.items() if command_line is not None and name not in wrong
    } == {}
    assert all(answers[name] is not None for name in wrong)


def test_vllm_has_every_flag_that_settings_may_give(ask: Ask) -> None:
    flags = [*sorted(LAUNCH.flags), "--no-such-flag"]
    # the parser exits on an unknown flag; a known flag without its value is an ArgumentError
    answers = ask({"arguments": [[*command_line(()), flag] for flag in flags]})["arguments"]
    unknown = [
        flag
        for flag, error in zip(flags, answers, strict=True)
        if error is not None and error.startswith("SystemExit")
    ]
    assert unknown == ["--no-such-flag"]
