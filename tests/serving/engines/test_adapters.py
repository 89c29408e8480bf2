"""LoRA adapters: the arguments of each engine, and which names and flags settings may give."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from serving import engine_container
from serving.engine_container import EngineContainer
from serving.engines import CONTRACTS
from serving.engines.launch import AdapterName, ArgumentError, EngineServer, Launch, check_adapters, check_arguments

MODELS = PurePosixPath("/mnt/nvme/models")
ADAPTERS = {"chat:sql": MODELS / "chat-sql@b", "chat:tax": MODELS / "chat-tax@c"}
SERVER = EngineServer(
    model_path=MODELS / "chat@a",
    served_name="chat",
    host="10.0.1.7",
    port=8000,
    shutdown_timeout_s=90,
    adapters=ADAPTERS,
)
WITH_ADAPTERS = [kind for kind, contract in CONTRACTS.items() if contract.launch and contract.launch.adapters]


def launch_of(kind: str) -> Launch:
    launch = CONTRACTS[kind].launch
    assert launch is not None
    return launch


def arguments(kind: str, *args: str, server: EngineServer = SERVER) -> str:
    return " ".join(launch_of(kind).arguments(replace(server, args=args)))


def test_vllm_loads_every_adapter_by_the_name_of_requests_and_keeps_all_in_memory() -> None:
    assert arguments("vllm").endswith(
        " --enable-lora --max-loras 2 --max-cpu-loras 2 --lora-modules"
        " chat:sql=/mnt/nvme/models/chat-sql@b chat:tax=/mnt/nvme/models/chat-tax@c"
    )


def test_vllm_uses_gpu_memory_for_at_most_eight_adapters_by_default() -> None:
    many = replace(SERVER, adapters={f"a{number}": MODELS / f"a{number}@d" for number in range(20)})
    assert "--max-loras 8 --max-cpu-loras 20 " in arguments("vllm", server=many)
    own = arguments("vllm", "--max-loras=20", server=many)
    assert own.count("--max-loras") == 1
    assert "--max-cpu-loras" not in own


def test_sglang_loads_every_adapter_by_the_name_after_the_colon() -> None:
    assert arguments("sglang").endswith(
        " --enable-lora --lora-paths sql=/mnt/nvme/models/chat-sql@b tax=/mnt/nvme/models/chat-tax@c"
    )


@pytest.mark.parametrize("kind", WITH_ADAPTERS)
def test_a_pool_without_adapters_starts_the_engine_without_them(kind: str) -> None:
    assert "lora" not in arguments(kind, server=replace(SERVER, adapters={}))


@pytest.mark.parametrize("kind", WITH_ADAPTERS)
@pytest.mark.parametrize("flag", ["--enable-lora", "--lora-modules", "--lora-paths"])
def test_settings_cannot_load_adapters_from_other_places(kind: str, flag: str) -> None:
    with pytest.raises(ArgumentError, match=flag):
        check_arguments(launch_of(kind), [flag, "x=/etc"])


@pytest.mark.parametrize("kind", WITH_ADAPTERS)
def test_settings_may_size_adapters(kind: str) -> None:
    check_arguments(launch_of(kind), ["--max-lora-rank", "64"])


def test_settings_cannot_let_clients_load_adapters_into_vllm() -> None:
    with pytest.raises(ArgumentError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING: is not allowed"):
        engine_container.check_environment(launch_of("vllm"), ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"])


@pytest.mark.parametrize(
    ("served", "name", "written"),
    [
        pytest.param("chat", "sql", "chat:sql", id="no model"),
        pytest.param("chat", "other:sql", "chat:sql", id="another model"),
        pytest.param("chat", "chat:", "chat:", id="no adapter"),
        pytest.param("chat", "chat:a/b", "chat:a-b", id="a slash"),
        pytest.param("org:chat", "org:chat:sql", "org-chat:sql", id="a colon in the served name"),
    ],
)
def test_sglang_refuses_names_for_which_it_would_answer_with_the_model_itself(
    served: str, name: str, written: str
) -> None:
    with pytest.raises(ArgumentError, match=f"adapter {name}: .* a colon, .*; write {written}"):
        check_adapters(launch_of("sglang"), served, [name])


def test_the_agent_refuses_adapters_that_the_engine_would_not_select() -> None:
    container = EngineContainer(
        kind="sglang", image="e@sha256:0", server=replace(SERVER, adapters={"sql": MODELS / "s"})
    )
    with pytest.raises(ArgumentError, match="adapter sql"):
        engine_container.engine_unit(container, cache_dir=MODELS)


def test_an_engine_that_the_fleet_starts_without_adapters_refuses_them() -> None:
    without = replace(launch_of("vllm"), adapters=None)
    with pytest.raises(ArgumentError, match="adapter sql: the fleet starts this engine without adapters; remove it"):
        check_adapters(without, "chat", ["sql"])


def test_only_engines_that_can_serve_adapters_are_started_with_them() -> None:
    assert all(CONTRACTS[kind].tokens.per_adapter for kind in WITH_ADAPTERS)
    assert launch_of("vllm").adapters is AdapterName.ANY
