import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import get_args

import pytest
from localcloud.engine import arguments as simulated

from gpufleet.settings import environment
from gpufleet.toolchain.folders import ROOT
from hosts.node import driver
from serving import engine_container, metrics
from serving.engine_container import ArgumentError, Serve, VllmOptions
from serving.engines import CONTRACTS, EngineKind
from tests.fixtures.engine_options import EVERYTHING

SERVE = Serve(
    kind=EngineKind.VLLM,
    image="123.dkr.ecr.us-east-1.amazonaws.com/vllm@sha256:" + "a" * 64,
    model_path=PurePosixPath("/mnt/nvme/models/chat@abc"),
    served_name="chat",
    host="10.0.1.7",
    shutdown_timeout_s=90,
    args=("--max-model-len", "8192", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
    env={"VLLM_LOGGING_LEVEL": "100%", "PRICE": "$HOME"},
)


def exec_start(unit: str) -> list[str]:
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.removeprefix("ExecStart="))


def value(unit: str, key: str) -> str:
    (line,) = [line for line in unit.splitlines() if line.startswith(f"{key}=")]
    return line.partition("=")[2]


def test_the_unit_gives_the_engine_time_to_drain_and_signals_only_its_main_process() -> None:
    unit = engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/mnt/nvme/models"))
    assert value(unit, "KillMode") == "mixed"
    assert value(unit, "KillSignal") == "SIGTERM"
    assert int(value(unit, "TimeoutStopSec")) > SERVE.shutdown_timeout_s
    assert int(value(unit, "StartLimitBurst")) < 10
    command = exec_start(unit)
    assert command[command.index("--shutdown-timeout") + 1] == "90"
    assert SERVE.image in command
    assert not any("HF_TOKEN" in word for word in command)
    assert "--env=HF_HUB_OFFLINE=1" in command
    assert "--env=VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75" in command


def test_routers_are_notified_of_a_stop_before_the_engine(tmp_path: Path) -> None:
    """For any reason of the stop: systemd runs ExecStop first, and signals the engine after it ends."""
    file = tmp_path / "engine stopping"
    unit = engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/c"), stopping_file=PurePosixPath(file))
    assert f'ExecStartPre=rm -f "{file}"' in unit.splitlines()
    command = shlex.split(value(unit, "ExecStop").removeprefix("-"))
    command[-1] = command[-1].replace("sleep", "echo sleep")
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (output, file.exists()) == ("sleep 3\n", True)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "", (
        "the agent wrote the file"
    )


def test_the_key_reaches_the_container_by_file_and_settings_cannot_replace_it() -> None:
    command = exec_start(engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/c")))
    assert command.index("--env-file=/run/gpu-fleet/engine.env") < command.index(SERVE.image)
    assert "KEY" not in " ".join(command)
    settings = replace(SERVE, env={"VLLM_API_KEY": "hunter2"})
    with pytest.raises(ArgumentError, match=r"VLLM_API_KEY: is set by the node agent; remove it") as refused:
        engine_container.engine_unit(settings, cache_dir=PurePosixPath("/c"))
    assert "hunter2" not in str(refused.value)


def test_the_container_is_not_root_and_writes_only_memory_and_its_scratch_folder() -> None:
    """Code that exploits the engine runs in a sandbox, although the container uses the machine's network."""
    unit = engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/mnt/nvme/models"))
    command = exec_start(unit)
    options = command[: command.index(SERVE.image)]
    assert {"--user=2000:0", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"} <= set(options)
    assert not [
        one for one in options if one.startswith(("--cap-add", "--privileged", "--pid", "--security-opt=sec"))
    ]
    mounts = [one.removeprefix("--volume=") for one in options if one.startswith(("--volume", "--mount"))]
    assert mounts == ["/mnt/nvme/models:/mnt/nvme/models:ro", "/mnt/nvme/models/.vllm:/mnt/nvme/models/.vllm:rw"]
    assert sum(one.startswith("--tmpfs=") for one in options) == 2
    assert "ExecStartPre=install -d -o 2000 -g 0 -m 0700 /mnt/nvme/models/.vllm" in unit


def test_engine_files_are_in_the_scratch_folder_for_any_settings() -> None:
    command = exec_start(engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/c")))
    variables = dict(one.removeprefix("--env=").split("=", 1) for one in command if one.startswith("--env="))
    for name in ("HOME", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert PurePosixPath(variables[name]).is_relative_to("/c/.vllm"), name
        with pytest.raises(ArgumentError, match=name):
            engine_container.check_environment([name])
    assert variables["USER"] == "vllm", "PyTorch asks for a name, and an image may not know the number"


def test_the_container_gets_the_machines_additional_devices() -> None:
    command = exec_start(
        engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/c"), devices=("/dev/infiniband",))
    )
    assert command.index("--device=/dev/infiniband") < command.index(SERVE.image)
    assert not any(
        "--device" in w for w in exec_start(engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/c")))
    )


def test_arguments_reach_the_engine_unchanged() -> None:
    command = exec_start(engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/mnt/nvme/models")))
    assert command[-1] == '{"method": "ngram", "num_speculative_tokens": 3}'
    # systemd reads %% and $$ as a single character
    assert "--env=VLLM_LOGGING_LEVEL=100%%" in command
    assert "--env=PRICE=$$HOME" in command


NODE_EXPORTER = engine_container.node_exporter_unit(
    "quay.io/prometheus/node-exporter@sha256:" + "c" * 64, host="10.0.1.7"
)


def test_the_gpu_exporter_has_the_one_capability_that_profiling_fields_need_and_nothing_else() -> None:
    unit = engine_container.dcgm_unit("nvcr.io/dcgm@sha256:" + "b" * 64, host="10.0.1.7")
    command = exec_start(unit)
    options = command[: command.index("nvcr.io/dcgm@sha256:" + "b" * 64)]
    assert [word for word in options if word.startswith("--cap")] == ["--cap-drop=ALL", "--cap-add=SYS_ADMIN"]
    assert {"--read-only", "--security-opt=no-new-privileges", f"--user=0:{engine_container.EXPORTER_GROUP}"} <= set(
        options
    )
    assert not [
        word for word in options if word.startswith(("--volume", "--mount", "--privileged", "--pid", "--ipc"))
    ]
    assert command[command.index("-a") + 1] == "10.0.1.7:9400"
    # DCGM's profiling fields need the capability: if none of them is read, remove the capability, too
    assert any("_PROF_" in name for name in metrics.series_names(metrics.Source.DCGM))


def test_a_node_exporter_listens_on_the_private_address_and_changes_nothing() -> None:
    command = exec_start(NODE_EXPORTER)
    image = next(place for place, word in enumerate(command) if "@sha256:" in word)
    assert {
        "--user=65534:65534",
        "--read-only",
        "--cap-drop=ALL",
        "--volume=/:/host:ro,rslave",
        "--memory=128m",
    } <= set(command[:image])
    assert {"--path.rootfs=/host", "--web.listen-address=10.0.1.7:9100"} <= set(command[image:])
    # systemd reads $$ as a single $
    assert command[-1].endswith("=^/(dev|proc|run|sys|var/lib/docker/.+)($$|/)")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(
            engine_container.UNIT,
            engine_container.engine_unit(SERVE, cache_dir=PurePosixPath("/mnt/nvme/models")),
            id="engine",
        ),
        pytest.param(
            engine_container.DCGM_UNIT,
            engine_container.dcgm_unit("nvcr.io/dcgm@sha256:" + "b" * 64, host="10.0.1.7"),
            id="dcgm",
        ),
        pytest.param(engine_container.NODE_EXPORTER_UNIT, NODE_EXPORTER, id="node exporter"),
    ],
)
def test_systemd_accepts_the_units(name: str, text: str, tmp_path: Path) -> None:
    # the programs may be missing on this machine
    (tmp_path / name).write_text(re.sub(r"=(-?)(?:docker|ip6?tables) ", r"=\1/bin/echo ", text))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    warnings = [line for line in done.stderr.splitlines() if name in line]
    assert done.returncode == 0, done.stderr
    assert warnings == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(("--host", "0.0.0.0"), "--host", id="where it listens"),
        pytest.param(("--port=9",), "--port", id="with equals"),
        pytest.param(("--served-model", "x"), "--served-model", id="an abbreviation, which vLLM takes"),
        pytest.param(("--trust-remote-code",), "--trust-remote-code", id="code from a model's folder"),
        pytest.param(("--api-key", "hunter2"), "--api-key", id="a secret"),
        pytest.param(("--Max", "1"), "is not a flag", id="capitals"),
        pytest.param(("--seed", "1\nExecStartPre=/bin/sh"), "control character", id="a line of its own"),
        *(
            pytest.param((flag,), flag.partition("=")[0], id=flag)
            for flag in (
                *("--tru", "--hos=0.0.0.0", "--por=1", "--mod=x", "--roo=/", "--max-model", "--max_model_len=1"),
                *("--config", "--tool-parser-plugin=/x.py", "--reasoning-parser-plugin=/x.py", "--middleware=m.f"),
                *("--worker-extension-cls=m.C", "--logits-processors=m:C", "--hf-overrides={}", "--hf-token=x"),
                *("--allowed-local-media-path=/", "--enable-log-requests", "--tokenizer=/x", "--chat-template=/x"),
            )
        ),
        pytest.param(("--load-format=pt",), "'pt' is not safe", id="pickles"),
        pytest.param(("--load-format", "npcache"), "'npcache' is not safe", id="pickles, in a word of its own"),
    ],
)
def test_arguments_that_settings_must_not_contain(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        engine_container.check_arguments(args)


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="none"),
        pytest.param(("--max-model-len", "8k", "-tp", "2"), id="short forms"),
        pytest.param(("--cpu-offload-gb", "-1"), id="a negative number"),
        pytest.param(("--max-num-seqs=64",), id="with equals"),
    ],
)
def test_arguments_that_are_accepted(args: tuple[str, ...]) -> None:
    engine_container.check_arguments(args)


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ALLOW_INSECURE_SERIALIZATION"),
        *("VLLM_API_KEY", "VLLM_PLUGINS", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE", "LD_PRELOAD"),
        *("PYTHONSTARTUP", "pythonpath", "HTTPS_PROXY", "PATH", "VLLM_CACHE_ROOT", "AWS_ENDPOINT_URL"),
    ],
)
def test_variables_that_settings_may_not_set(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        engine_container.check_environment((name,))


@pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "NCCL_DEBUG", "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"])
def test_variables_that_settings_may_set(name: str) -> None:
    engine_container.check_environment((name,))


def test_every_typed_option_is_a_flag_that_settings_may_give() -> None:
    engine_container.check_arguments(EVERYTHING.arguments())


def test_options_contain_only_differences_from_defaults() -> None:
    assert VllmOptions().arguments() == ()
    options = VllmOptions(
        max_model_len=8192,
        tensor_parallel_size=2,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=False,
        enforce_eager=True,
        quantization="fp8",
    )
    assert options.arguments() == (
        *("--max-model-len", "8192"),
        *("--tensor-parallel-size", "2"),
        *("--gpu-memory-utilization", "0.9"),
        *("--quantization", "fp8"),
        "--no-enable-prefix-caching",
        "--enforce-eager",
    )


def test_the_simulated_engine_accepts_the_units_arguments() -> None:
    arguments = engine_container.serve_arguments(SERVE)
    settings = simulated.parse(list(arguments))
    assert settings.served_names == ("chat",)
    assert (settings.host, settings.port, settings.shutdown_timeout_s) == ("10.0.1.7", 8000, 90)
    assert settings.max_model_len == 8192


def test_every_engine_that_the_fleet_starts_is_supported_everywhere() -> None:
    known = {kind for kind, contract in CONTRACTS.items() if contract.launchable}
    assert all(CONTRACTS[kind].key_variable for kind in known)
    assert set(driver.BUILT_WITH) == known
    assert set(get_args(environment.Engine.model_fields["kind"].annotation)) == known


@pytest.mark.parametrize(
    ("given", "added"),
    [
        pytest.param((), False, id="one copy"),
        pytest.param(("--data-parallel-size", "2"), True, id="two copies"),
        pytest.param(("--data-parallel-size=2",), True, id="in one word"),
        pytest.param(("-dp", "2"), True, id="in short"),
        pytest.param(
            ("--data-parallel-size", "2", "--api-server-count", "2"), False, id="the settings set the number"
        ),
        pytest.param(("--data-parallel-size", "2", "--api-server-count=2"), False, id="the same in one word"),
    ],
)
def test_several_copies_share_one_page_with_process_metrics(given: tuple[str, ...], added: bool) -> None:
    arguments = engine_container.serve_arguments(replace(SERVE, args=given))
    assert (arguments[-2:] == ("--api-server-count", "1")) is added


def test_docs_list_the_flags_that_settings_may_give() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    listed = text.partition("- **Engine arguments.**")[2].partition("- **Node exporter.**")[0]
    assert set(re.findall(r"`(--?[a-z-]+)`", listed)) == engine_container.FLAGS
