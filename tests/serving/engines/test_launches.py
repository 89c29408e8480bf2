"""How Triton, LMDeploy and Dynamo are started: arguments, what settings may not change, and what their gates pass."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
from localcloud.machines.units import arguments as unit_arguments

from serving import engine_container
from serving.engine_container import EngineContainer
from serving.engines import CONTRACTS
from serving.engines.launch import ArgumentError, EngineServer, Gate, Launch, check_arguments, check_environment

TRITON, LMDEPLOY, DYNAMO = "triton", "lmdeploy", "dynamo"
GATED: Final = (TRITON, LMDEPLOY, DYNAMO)
SERVER: Final = EngineServer(
    model_path=PurePosixPath("/mnt/nvme/models/chat@abc"),
    served_name="chat",
    host="127.0.0.1",
    port=8001,
    shutdown_timeout_s=90,
)


def launch_of(kind: str) -> Launch:
    launch = CONTRACTS[kind].launch
    assert launch is not None
    return launch


def gate_of(kind: str) -> Gate:
    gate = launch_of(kind).gate
    assert gate is not None
    return gate


def arguments(kind: str, *args: str) -> tuple[str, ...]:
    return launch_of(kind).arguments(replace(SERVER, args=args))


def test_lmdeploy_gets_the_arguments_of_a_pool() -> None:
    assert launch_of(LMDEPLOY).program == "lmdeploy"
    assert arguments(LMDEPLOY, "--tp", "2", "--session-len", "8192") == (
        *("serve", "api_server", "/mnt/nvme/models/chat@abc", "--model-name", "chat"),
        *("--server-name", "127.0.0.1", "--server-port", "8001", "--disable-fastapi-docs"),
        *("--allow-origins", "http://none.invalid", "--allowed-media-domains", "none.invalid"),
        *("--log-level", "WARNING", "--tp", "2", "--session-len", "8192"),
    )


def test_dynamo_gets_the_arguments_of_a_pool() -> None:
    program, launcher, *rest = arguments(DYNAMO, "--tensor-parallel-size", "2", "--max-model-len", "8192")
    assert (launch_of(DYNAMO).program, program) == ("python3", "-c")
    compile(launcher, "launcher", "exec")
    assert rest == [
        *("90", "--http-host", "127.0.0.1", "--http-port", "8001"),
        *("dynamo.vllm", "--model", "/mnt/nvme/models/chat@abc", "--served-model-name", "chat"),
        *("--kv-events-config", '{"enable_kv_cache_events": false}'),
        *("--tensor-parallel-size", "2", "--max-model-len", "8192"),
    ]


def test_triton_gets_the_arguments_of_a_pool() -> None:
    given = ("--tensor-parallel-size=2", "--gpu-memory-utilization", "0.9", "--no-enable-prefix-caching")
    program, launcher, repository, main, name, engine, *rest = arguments(
        TRITON, *given, "--enforce-eager", "--dtype", "bfloat16", "--default-max-tokens", "512"
    )
    assert (launch_of(TRITON).program, program) == ("python3", "-c")
    compile(launcher, "launcher", "exec")
    assert (repository, name) == ("/tmp/models", "chat")
    assert main == "/opt/tritonserver/python/openai/openai_frontend/main.py"
    assert json.loads(engine) == {
        "model": "/mnt/nvme/models/chat@abc",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "dtype": "bfloat16",
    }
    assert rest == [
        *("--tokenizer", "/mnt/nvme/models/chat@abc", "--host", "127.0.0.1", "--openai-port", "8001"),
        *("--uvicorn-log-level", "warning", "--default-max-tokens", "512"),
    ]


def test_triton_starts_from_a_model_repository_that_the_launcher_writes(tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text("import sys; print(sys.argv[1:])")
    repository = tmp_path / "models"
    _, launcher, _, _, *rest = arguments(TRITON, "--max-model-len", "4096")
    done = subprocess.run(
        [sys.executable, "-c", launcher, str(repository), str(program), *rest],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(["--model-repository", str(repository), *rest[2:]])
    assert (repository / "chat/config.pbtxt").read_text().startswith('backend: "vllm" instance_group')
    described = json.loads((repository / "chat/1/model.json").read_text())
    assert described == {"model": "/mnt/nvme/models/chat@abc", "max_model_len": 4096}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(("--max-model-len", "8k"), "--max-model-len: expected a whole number, got '8k'; write", id="8k"),
        pytest.param(("--gpu-memory-utilization=most",), "expected a number, got 'most'", id="not a number"),
        pytest.param(("--max-model-len",), "--max-model-len: has no value", id="nothing follows"),
        pytest.param(("--dtype", "--enforce-eager"), "--dtype: has no value", id="a flag follows"),
        pytest.param(
            ("--enable-prefix-caching=false",),
            "--enable-prefix-caching: takes no value; remove =false",
            id="a switch with a value",
        ),
        pytest.param(("--enforce-eager", "yes"), "yes: follows no flag with a value", id="a value for a switch"),
    ],
)
def test_triton_refuses_values_that_vllm_could_not_read(args: tuple[str, ...], message: str) -> None:
    check_arguments(launch_of(TRITON), args)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        arguments(TRITON, *args)


@pytest.mark.parametrize("kind", [kind for kind, one in CONTRACTS.items() if one.launch and one.launch.gate])
def test_an_engine_behind_a_gate_does_not_listen_at_another_address(kind: str) -> None:
    with pytest.raises(ArgumentError, match=r"10\.0\.1\.7 is not a loopback address; this engine needs its gate"):
        launch_of(kind).arguments(replace(SERVER, host="10.0.1.7"))


@pytest.mark.parametrize("kind", GATED)
def test_the_unit_brings_every_argument_to_the_container_unchanged(kind: str) -> None:
    """Launchers have several lines, and a unit's command is one line."""
    container = EngineContainer(kind=kind, image="engine@sha256:" + "a" * 64, server=SERVER)
    unit = engine_container.engine_unit(container, cache_dir=PurePosixPath("/mnt/nvme/models"))
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    command = unit_arguments(line.removeprefix("ExecStart="), {})
    assert tuple(command[command.index(container.image) + 1 :]) == arguments(kind)
    assert f"--entrypoint={launch_of(kind).program}" in command


@pytest.mark.parametrize("kind", GATED)
def test_an_engine_writes_only_memory_and_its_folder(kind: str) -> None:
    launch, scratch = launch_of(kind), PurePosixPath(f"/mnt/nvme/models/.{kind}")
    found = launch.folders(scratch)
    assert found["HOME"] == str(scratch)
    paths = {name: text for name, text in found.items() if text.startswith("/")}
    assert {"XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} <= set(paths)
    assert all(PurePosixPath(text).is_relative_to(scratch) for text in paths.values())
    for name in paths:
        with pytest.raises(ArgumentError, match=name):
            check_environment(launch, (name,))


DECIDED: Final = "is set by the node agent; remove it from the settings"
REFUSED: Final = "is not allowed in settings; remove it or write"


@pytest.mark.parametrize(
    ("kind", "flag", "message"),
    [
        *(
            pytest.param(LMDEPLOY, flag, DECIDED, id=f"lmdeploy {flag}")
            for flag in (
                *("--server-name", "--server-port", "--model-name", "--api-keys", "--allow-origins"),
                *("--allow-credentials", "--allowed-media-domains", "--disable-fastapi-docs", "--log-level"),
            )
        ),
        *(
            pytest.param(LMDEPLOY, flag, REFUSED, id=f"lmdeploy {flag}")
            for flag in (
                *("--trust-remote-code", "--adapters", "--chat-template", "--generation-config", "--download-dir"),
                *("--hf-overrides", "--proxy-url", "--allow-terminate-by-client", "--role", "--migration-backend"),
                *("--ssl", "--max-log-len", "--distributed-executor-backend", "--logprobs-mode", "--dp", "--nnodes"),
                *("--enable-return-routed-experts", "--speculative-draft-model", "--disable-metrics", "--revision"),
                *("--max-concurrent-requests", "--dist-init-addr", "--enable-abort-handling", "--session", "--t"),
            )
        ),
        *(
            pytest.param(TRITON, flag, DECIDED, id=f"triton {flag}")
            for flag in (
                *("--model-repository", "--model-control-mode", "--load-model", "--tokenizer", "--host"),
                *("--openai-port", "--openai-restricted-api", "--enable-kserve-frontends", "--kserve-http-port"),
                *("--kserve-grpc-port", "--uvicorn-log-level"),
            )
        ),
        *(
            pytest.param(TRITON, flag, REFUSED, id=f"triton {flag}")
            for flag in (
                *("--chat-template", "--tritonserver-log-verbose-level", "--lora-separator", "--backend"),
                *("--trust-remote-code", "--load-format", "--hf-overrides", "--worker-cls", "--model", "--tp"),
                *("--backend-directory", "--cache-config", "--trace-config", "--http-restricted-api", "--log-file"),
            )
        ),
        *(
            pytest.param(DYNAMO, flag, DECIDED, id=f"dynamo {flag}")
            for flag in (
                *("--model", "--served-model-name", "--http-host", "--http-port", "--kv-events-config"),
                *("--discovery-backend", "--request-plane", "--event-plane"),
            )
        ),
        *(
            pytest.param(DYNAMO, flag, REFUSED, id=f"dynamo {flag}")
            for flag in (
                *("--frontend-route-extension", "--trust-remote-code", "--metrics-prefix", "--dump-config-to"),
                *("--chat-template", "--model-path", "--tokenizer", "--router-policy-config", "--interactive"),
                *("--kserve-grpc-server", "--nats-tls-insecure", "--enable-anthropic-api", "--serve-indexer"),
                *("--enable-rl", "--custom-encoder-class", "--custom-jinja-template", "--media-output-fs-url"),
                *("--model-express-url", "--health-check-payload", "--benchmark-mode", "--fpm-trace", "--namespace"),
                *("--endpoint", "--kv-transfer-config", "--worker-cls", "--middleware", "--hf-overrides"),
                *("--tool-call-parser", "--api-server-count", "--data-parallel-size", "--connector"),
            )
        ),
    ],
)
def test_arguments_that_settings_must_not_contain(kind: str, flag: str, message: str) -> None:
    for text in (flag, f"{flag}=x"):
        with pytest.raises(ArgumentError) as refused:
            check_arguments(launch_of(kind), (text,))
        assert str(refused.value).startswith(f"engine argument {flag}: {message}")


def test_dynamo_loads_only_formats_without_code() -> None:
    with pytest.raises(ArgumentError, match="'pt' is not safe to load"):
        check_arguments(launch_of(DYNAMO), ("--load-format", "pt"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(
            pytest.param(kind, name, id=f"{kind} {name}")
            for kind in GATED
            for name in ("LD_PRELOAD", "PYTHONPATH", "HF_TOKEN", "HTTPS_PROXY", "PATH", "GPUFLEET_ENGINE_KEY")
        ),
        *(
            pytest.param(LMDEPLOY, name, id=f"lmdeploy {name}")
            for name in (
                *("LMDEPLOY_USE_MODELSCOPE", "LMDEPLOY_LOG_FILE", "TM_LOG_LEVEL", "UVICORN_LOG_LEVEL"),
                *("SSL_KEYFILE", "RAY_ADDRESS", "MASTER_ADDR"),
            )
        ),
        *(
            pytest.param(TRITON, name, id=f"triton {name}")
            for name in ("TRITON_PTXAS_PATH", "VLLM_PLUGINS", "VLLM_LOGGING_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT")
        ),
        *(
            pytest.param(DYNAMO, name, id=f"dynamo {name}")
            for name in (
                *("DYN_FRONTEND_ROUTE_EXTENSIONS", "DYN_SYSTEM_PORT", "DYN_REQUEST_TRACE", "dyn_http_host"),
                *("DYN_TRUST_REMOTE_CODE", "NATS_SERVER", "ETCD_ENDPOINTS", "OTEL_EXPORT_ENABLED"),
                *("MODEL_EXPRESS_URL", "VLLM_ALLOW_INSECURE_SERIALIZATION"),
            )
        ),
    ],
)
def test_variables_that_settings_must_not_set(kind: str, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"engine variable {name}: .*; remove it"):
        check_environment(launch_of(kind), (name,))


@pytest.mark.parametrize("kind", GATED)
def test_variables_that_settings_may_set(kind: str) -> None:
    check_environment(launch_of(kind), ("NCCL_DEBUG", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))


@pytest.mark.parametrize(
    ("kind", "splits"),
    [
        pytest.param(LMDEPLOY, {"--tp": "tensor"}, id="lmdeploy: --cp divides --tp"),
        pytest.param(
            TRITON, {"--tensor-parallel-size": "tensor", "--pipeline-parallel-size": "pipeline"}, id="triton"
        ),
        pytest.param(
            DYNAMO,
            {
                "--tensor-parallel-size": "tensor",
                "-tp": "tensor",
                "--pipeline-parallel-size": "pipeline",
                "-pp": "pipeline",
            },
            id="dynamo",
        ),
    ],
)
def test_flags_that_split_a_model_over_gpus(kind: str, splits: dict[str, str]) -> None:
    assert launch_of(kind).splits == splits
    assert set(splits) <= launch_of(kind).flags


@pytest.mark.parametrize("kind", GATED)
def test_a_flag_is_either_decided_or_allowed(kind: str) -> None:
    launch = launch_of(kind)
    assert not launch.flags & launch.decided
    assert set(launch.values) <= launch.flags


@pytest.mark.parametrize("kind", GATED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_gate_passes_inference(kind: str, path: str) -> None:
    assert any(re.fullmatch(pattern, path) for pattern in gate_of(kind).inference)
    assert "/v1/models" in gate_of(kind).readable


DANGEROUS: Final = {
    LMDEPLOY: (
        "/update_weights", "/init_weights_update_group", "/update_weights_from_distributed",
        "/destroy_weights_update_group", "/sleep", "/wakeup", "/abort_request", "/terminate", "/generate", "/pooling",
        "/get_ppl", "/v1/encode", "/distserve/engine_info", "/distserve/p2p_connect", "/distserve/free_cache",
        "/nodes/add", "/openapi.json", "/",
    ),
    TRITON: (
        "/v1/models/chat/load", "/v1/models/chat/unload", "/v2/repository/index", "/v2/repository/models/chat/load",
        "/v2/models/chat/infer", "/v2/models/chat/generate", "/v2/trace/setting", "/v2/logging",
        "/v2/systemsharedmemory/region/x/register", "/v2/cudasharedmemory/region/x/register", "/invocations",
        "/v2/models/chat/config", "/openapi.json", "/docs",
    ),
    DYNAMO: (
        "/busy_threshold", "/engine/control/sleep", "/engine/control/wake_up", "/engine/control/start_profile",
        "/engine/control/scale_elastic_ep", "/engine/pause_generation", "/engine/abort_request",
        "/engine/flush_cache", "/engine/update_weights_from_disk", "/v1/loras", "/workers", "/workers/1/drain",
        "/v1/metadata/chat/tokenizer.json", "/openapi.json", "/docs",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "path"),
    [pytest.param(kind, path, id=f"{kind} {path}") for kind, paths in DANGEROUS.items() for path in paths],
)
def test_a_gate_passes_no_endpoint_that_changes_or_describes_the_engine(kind: str, path: str) -> None:
    gate = gate_of(kind)
    for text in (path, f"{path}/", f"/v1/completions/..{path}", f"/v1/completions{path}", f"{path}/v1/completions"):
        assert not [pattern for pattern in gate.inference if re.fullmatch(pattern, text)], text
        assert text not in gate.readable


@pytest.mark.parametrize("kind", GATED)
def test_the_release_of_these_engines_is_a_setting(kind: str) -> None:
    assert CONTRACTS[kind].probes.version is None
