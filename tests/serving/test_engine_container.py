import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
import yaml
from localcloud.engine import arguments as simulated
from localcloud.engine.batch import Batch
from localcloud.engine.endpoints import Served, answer
from localcloud.engine.loading import LoadedModel

from gpufleet.toolchain.folders import ROOT
from serving import engine_container, engine_gate, exporter_units, metrics
from serving.accelerators import CONTRACTS as ACCELERATORS
from serving.engine_container import EngineContainer
from serving.engines import CONTRACTS
from serving.engines.launch import ArgumentError, EngineServer, check_arguments, check_environment
from serving.engines.vllm import LAUNCH as VLLM
from serving.engines.vllm import VllmOptions
from tests.fixtures.engine_options import EVERYTHING

SERVER = EngineServer(
    model_path=PurePosixPath("/mnt/nvme/models/chat@abc"),
    served_name="chat",
    host="10.0.1.7",
    port=8000,
    shutdown_timeout_s=90,
    args=("--max-model-len", "8192", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
)
CONTAINER = EngineContainer(
    kind="vllm",
    image="123.dkr.ecr.us-east-1.amazonaws.com/vllm@sha256:" + "a" * 64,
    server=SERVER,
    env={"VLLM_LOGGING_LEVEL": "100%", "PRICE": "$HOME"},
)


def exec_start(unit: str) -> list[str]:
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.removeprefix("ExecStart="))


def value(unit: str, key: str) -> str:
    (line,) = [line for line in unit.splitlines() if line.startswith(f"{key}=")]
    return line.partition("=")[2]


def test_the_unit_gives_the_engine_time_to_drain_and_signals_only_its_main_process() -> None:
    unit = engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/mnt/nvme/models"))
    assert value(unit, "KillMode") == "mixed"
    assert value(unit, "KillSignal") == "SIGTERM"
    assert int(value(unit, "TimeoutStopSec")) > SERVER.shutdown_timeout_s
    assert int(value(unit, "StartLimitBurst")) < 10
    command = exec_start(unit)
    assert command[command.index("--shutdown-timeout") + 1] == "90"
    assert CONTAINER.image in command
    assert not any("HF_TOKEN" in word for word in command)
    assert "--env=HF_HUB_OFFLINE=1" in command
    assert "--env=VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75" in command


def test_routers_are_notified_of_a_stop_before_the_engine(tmp_path: Path) -> None:
    """For any reason of the stop: systemd runs ExecStop first, and signals the engine after it ends."""
    file = tmp_path / "engine stopping"
    unit = engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/c"), stopping_file=PurePosixPath(file))
    assert f'ExecStartPre=rm -f "{file}"' in unit.splitlines()
    command = shlex.split(value(unit, "ExecStop").removeprefix("-"))
    command[-1] = command[-1].replace("sleep", "echo sleep")
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (output, file.exists()) == ("sleep 3\n", True)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "", (
        "the agent wrote the file"
    )


def test_the_key_reaches_the_container_by_file_and_settings_cannot_replace_it() -> None:
    command = exec_start(engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/c")))
    assert command.index("--env-file=/run/gpu-fleet/engine.env") < command.index(CONTAINER.image)
    assert "KEY" not in " ".join(command)
    settings = replace(CONTAINER, env={"VLLM_API_KEY": "hunter2"})
    with pytest.raises(ArgumentError, match=r"VLLM_API_KEY: is set by the node agent; remove it") as refused:
        engine_container.engine_unit(settings, cache_dir=PurePosixPath("/c"))
    assert "hunter2" not in str(refused.value)


def test_the_container_is_not_root_and_writes_only_memory_and_its_scratch_folder() -> None:
    """Code that exploits the engine runs in a sandbox, although the container uses the machine's network."""
    unit = engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/mnt/nvme/models"))
    command = exec_start(unit)
    options = command[: command.index(CONTAINER.image)]
    assert {"--user=2000:0", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"} <= set(options)
    assert not [
        one for one in options if one.startswith(("--cap-add", "--privileged", "--pid", "--security-opt=sec"))
    ]
    mounts = [one.removeprefix("--volume=") for one in options if one.startswith(("--volume", "--mount"))]
    assert mounts == ["/mnt/nvme/models:/mnt/nvme/models:ro", "/mnt/nvme/models/.vllm:/mnt/nvme/models/.vllm:rw"]
    assert sum(one.startswith("--tmpfs=") for one in options) == 2
    assert "ExecStartPre=install -d -o 2000 -g 0 -m 0700 /mnt/nvme/models/.vllm" in unit


def test_engine_files_are_in_the_scratch_folder_for_any_settings() -> None:
    command = exec_start(engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/c")))
    variables = dict(one.removeprefix("--env=").split("=", 1) for one in command if one.startswith("--env="))
    for name in ("HOME", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert PurePosixPath(variables[name]).is_relative_to("/c/.vllm"), name
        with pytest.raises(ArgumentError, match=name):
            check_environment(VLLM, [name])
    assert variables["USER"] == "vllm", "PyTorch asks for a name, and an image may not know the number"


def test_the_container_gets_the_machines_additional_devices() -> None:
    command = exec_start(
        engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/c"), devices=("/dev/infiniband",))
    )
    assert command.index("--device=/dev/infiniband") < command.index(CONTAINER.image)
    assert not any(
        "--device" in w for w in exec_start(engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/c")))
    )


def test_arguments_reach_the_engine_unchanged() -> None:
    command = exec_start(engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/mnt/nvme/models")))
    assert command[-1] == '{"method": "ngram", "num_speculative_tokens": 3}'
    # systemd reads %% and $$ as a single character
    assert "--env=VLLM_LOGGING_LEVEL=100%%" in command
    assert "--env=PRICE=$$HOME" in command


NODE_EXPORTER = exporter_units.node_exporter_unit(
    "quay.io/prometheus/node-exporter@sha256:" + "c" * 64, host="10.0.1.7"
)


IMAGE = "nvcr.io/dcgm@sha256:" + "b" * 64
EXPORTERS = {
    kind: exporter_units.exporter_unit(contract.launch, image=IMAGE, host="10.0.1.7", agent=("python3", "node.pyz"))
    for kind, contract in ACCELERATORS.items()
}


def test_each_exporter_listens_on_the_port_that_prometheus_reads() -> None:
    amd, neuron, tpu = (exec_start(EXPORTERS[kind]) for kind in ("amd", "neuron", "tpu"))
    assert {"--device=/dev/kfd", "--env=METRICS_EXPORTER_PORT=9400"} <= set(amd[: amd.index(IMAGE)])
    assert amd[amd.index(IMAGE) + 1 :] == ["-bind=10.0.1.7"]
    assert neuron[neuron.index(IMAGE) + 1 :] == ["--port", "9400"], "8000 is the engine's"
    assert tpu == ["python3", "node.pyz", "libtpu", "10.0.1.7:9400"], "the node agent's own program"


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_an_exporter_opens_no_connections_but_to_metadata_that_it_needs(kind: str) -> None:
    """TPU: the program runs without a container and without rights."""
    lines = [line for line in EXPORTERS[kind].splitlines() if " iptables -w -I" in line or "=iptables -w -I" in line]
    if kind == "tpu":
        assert "User=65534" in EXPORTERS[kind].splitlines()
        assert lines == []
        return
    (rule,) = lines
    assert rule.endswith("-m owner --gid-owner 2001 -m conntrack --ctstate NEW -j REJECT")
    assert ("! -d 169.254.169.254" in rule) == (kind == "neuron")


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_the_engine_has_no_privileges_on_any_accelerator(kind: str) -> None:
    container = replace(CONTAINER, accelerator=kind)
    command = exec_start(
        engine_container.engine_unit(container, cache_dir=PurePosixPath("/c"), devices=("/dev/x0",), groups=(993,))
    )
    assert {"--cap-drop=ALL", "--user=2000:0", "--device=/dev/x0", "--group-add=993"} <= set(command)
    assert "--privileged" not in command
    assert ("--gpus=all" in command) == (kind == "nvidia")


def test_the_gpu_exporter_has_the_one_capability_that_profiling_fields_need_and_nothing_else() -> None:
    unit = EXPORTERS["nvidia"]
    command = exec_start(unit)
    options = command[: command.index("nvcr.io/dcgm@sha256:" + "b" * 64)]
    assert [word for word in options if word.startswith("--cap")] == ["--cap-drop=ALL", "--cap-add=SYS_ADMIN"]
    assert {"--read-only", "--security-opt=no-new-privileges", f"--user=0:{exporter_units.EXPORTER_GROUP}"} <= set(
        options
    )
    assert not [
        word for word in options if word.startswith(("--volume", "--mount", "--privileged", "--pid", "--ipc"))
    ]
    assert command[command.index("-a") + 1] == "10.0.1.7:9400"
    # DCGM's profiling fields need the capability: if none of them is read, remove the capability, too
    assert any("_PROF_" in name for name in metrics.series_names(metrics.Source.ACCELERATOR))


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
            engine_container.engine_unit(CONTAINER, cache_dir=PurePosixPath("/mnt/nvme/models")),
            id="engine",
        ),
        pytest.param(
            exporter_units.EXPORTER_UNIT,
            EXPORTERS["nvidia"],
            id="dcgm",
        ),
        *(
            pytest.param(exporter_units.EXPORTER_UNIT, EXPORTERS[kind], id=f"exporter of {kind}")
            for kind in ("amd", "neuron", "tpu")
        ),
        pytest.param(exporter_units.NODE_EXPORTER_UNIT, NODE_EXPORTER, id="node exporter"),
        pytest.param(engine_gate.UNIT, engine_container.gate_unit("gpu-fleet/haproxy@sha256:" + "d" * 64), id="gate"),
    ],
)
def test_systemd_accepts_the_units(name: str, text: str, tmp_path: Path) -> None:
    # the programs may be missing on this machine
    (tmp_path / name).write_text(re.sub(r"=(-?)(?:docker|ip6?tables|python3) ", r"=\1/bin/echo ", text))
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
        check_arguments(VLLM, args)


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
    check_arguments(VLLM, args)


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
        check_environment(VLLM, (name,))


@pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "NCCL_DEBUG", "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"])
def test_variables_that_settings_may_set(name: str) -> None:
    check_environment(VLLM, (name,))


def test_every_typed_option_is_a_flag_that_settings_may_give() -> None:
    check_arguments(VLLM, EVERYTHING.arguments())


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
    arguments = VLLM.arguments(SERVER)
    settings = simulated.parse(list(arguments))
    assert settings.served_names == ("chat",)
    assert (settings.host, settings.port, settings.shutdown_timeout_s) == ("10.0.1.7", 8000, 90)
    assert settings.max_model_len == 8192


STARTED = [kind for kind, contract in CONTRACTS.items() if contract.launch is not None]


@pytest.mark.parametrize("kind", STARTED)
def test_the_simulated_engine_knows_every_engine_that_the_fleet_starts(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, probes = CONTRACTS[kind].launch, CONTRACTS[kind].probes
    assert launch is not None
    key = None if launch.gate else "key"
    if key:
        monkeypatch.setenv(launch.key_variable, key)
    settings = simulated.parse(list(launch.arguments(replace(SERVER, host="127.0.0.1", args=()))))
    assert (settings.kind, settings.served_names, settings.host, settings.port, settings.api_key) == (
        *(kind, ("chat",), "127.0.0.1", 8000),
        key,
    )
    model = LoadedModel(weight_bytes=1, kv_bytes_per_token=1, max_context=8192, vocabulary=("a",))
    served = Served(settings=settings, loaded=Batch(settings, model), draining=False)
    pages = ["/v1/models", probes.alive, probes.version, None if probes.metrics_port else probes.metrics]
    assert [path for path in pages if path is not None and answer("GET", path, served) is None] == []


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
    arguments = VLLM.arguments(replace(SERVER, args=given))
    assert (arguments[-2:] == ("--api-server-count", "1")) is added


@pytest.mark.parametrize("kind", STARTED)
def test_docs_list_the_flags_that_settings_may_give(kind: str) -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    title, launch = CONTRACTS[kind].title, CONTRACTS[kind].launch
    listed = text.partition("## Engine arguments")[2].partition(f"- **{title}**: ")[2].partition("`.\n")[0]
    assert launch is not None
    assert set(re.findall(r"`(--?[a-z0-9_-]+)", listed)) == launch.flags


SGLANG = replace(CONTAINER, kind="sglang", server=replace(SERVER, args=("--context-length", "8192")))


def test_the_unit_of_sglang_keeps_its_key_out_of_the_command_line() -> None:
    unit = engine_container.engine_unit(SGLANG, cache_dir=PurePosixPath("/mnt/nvme/models"))
    command = exec_start(unit)
    assert "--entrypoint=python3" in command
    assert "--api-key" not in command
    assert "--env=SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0" in command
    assert "--volume=/mnt/nvme/models/.sglang:/mnt/nvme/models/.sglang:rw" in command
    arguments = command[command.index(SGLANG.image) + 1 :]
    assert arguments[0] == "-c"
    assert arguments[2:] == [
        *("--model-path", "/mnt/nvme/models/chat@abc", "--served-model-name", "chat"),
        *("--host", "10.0.1.7", "--port", "8000", "--enable-metrics"),
        *("--allowed-media-domains", "none.invalid", "--log-level", "warning", "--context-length", "8192"),
    ]


def test_sglang_gets_its_key_as_an_argument_inside_its_process(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "import os, sys; print(sys.argv[1:], 'SGLANG_ENGINE_KEY' in os.environ)"
    )
    program, *arguments = CONTRACTS["sglang"].launch.arguments(SERVER)[:2]  # type: ignore[union-attr]
    done = subprocess.run(
        [sys.executable, program, *arguments, "--port", "1"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "SGLANG_ENGINE_KEY": "k" * 64},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == f"{['--port', '1', '--api-key', 'k' * 64]} False"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(("--trust-remote-code",), "is not allowed", id="code of the model"),
        pytest.param(("--api-key=x",), "is set by the node agent", id="key"),
        pytest.param(("--log-requests",), "is not allowed", id="prompts in logs"),
        pytest.param(("--max-model-len", "8192"), "is not allowed", id="a flag of another engine"),
    ],
)
def test_arguments_of_sglang_that_settings_must_not_contain(args: tuple[str, ...], message: str) -> None:
    launch = CONTRACTS["sglang"].launch
    assert launch is not None
    with pytest.raises(ArgumentError, match=message):
        check_arguments(launch, args)


GATE_UNIT = engine_container.gate_unit("gpu-fleet/haproxy@sha256:" + "d" * 64)


def test_the_gate_is_not_root_writes_nothing_and_connects_only_to_this_machine() -> None:
    command = exec_start(GATE_UNIT)
    options = command[: command.index("gpu-fleet/haproxy@sha256:" + "d" * 64)]
    assert {
        *("--network=host", "--user=2002:2002", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"),
        *("--env-file=/run/gpu-fleet/engine.env", "--entrypoint=haproxy"),
        "--volume=/run/gpu-fleet/engine-gate.cfg:/etc/gpufleet/engine-gate.cfg:ro",
    } <= set(options)
    assert not [one for one in options if one.startswith(("--cap-add", "--privileged", "--tmpfs", "--env="))]
    rule = "OUTPUT ! -o lo -m owner --gid-owner 2002 -m conntrack --ctstate NEW -j REJECT"
    assert f"ExecStartPre=iptables -w -I {rule}" in GATE_UNIT.splitlines()


TRTLLM = replace(
    CONTAINER, kind="trtllm", server=replace(SERVER, host="127.0.0.1", port=8001, args=("--tp_size", "2"))
)


def test_the_unit_of_tensorrt_llm_listens_on_loopback_without_a_key() -> None:
    unit = engine_container.engine_unit(TRTLLM, cache_dir=PurePosixPath("/mnt/nvme/models"))
    command = exec_start(unit)
    assert not [one for one in command if one.startswith("--env-file")]
    arguments = command[command.index(TRTLLM.image) + 1 :]
    assert arguments[2:] == [
        *("/mnt/nvme/models/chat@abc", "--served_model_name", "chat", "--host", "127.0.0.1", "--port", "8001"),
        *("--log_level", "warning", "--tp_size", "2"),
    ]


def test_tensorrt_llm_reports_its_metrics(tmp_path: Path) -> None:
    """Options that turn them on are in a file of the container only."""
    program = tmp_path / "trtllm-serve"
    program.write_text('#!/bin/sh\necho "$*"; cat /tmp/gpufleet-options.yaml\n')
    program.chmod(0o755)
    launch = CONTRACTS["trtllm"].launch
    assert launch is not None
    done = subprocess.run(
        [sys.executable, *launch.arguments(TRTLLM.server)[:2], "model"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    command, options = done.stdout.splitlines()
    assert command == "serve model --extra_llm_api_options /tmp/gpufleet-options.yaml"
    assert yaml.safe_load(options) == {"return_perf_metrics": True, "enable_iter_perf_stats": True}


@pytest.mark.parametrize("kind", [kind for kind, contract in CONTRACTS.items() if contract.launch is None])
def test_an_engine_without_a_launch_is_not_started(kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"engine {kind}: the fleet reads its metrics but does not start it"):
        engine_container.launch_of(kind)
