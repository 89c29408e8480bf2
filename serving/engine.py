"""The serving engine behind one interface: arguments, its container's unit, health, and the names of its numbers.

vLLM 0.32 is the one that is there. Another engine is another `Interface` and another `arguments` function; all
that asks a store of metrics asks by vLLM's names, which Prometheus gives to the others' numbers (`renamed`).
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.metrics import Metric

PORT: Final = metrics.PORTS[metrics.Source.ENGINE]
UNIT: Final = "gpufleet-engine.service"
DCGM_UNIT: Final = "gpufleet-dcgm.service"
NODE_EXPORTER_UNIT: Final = "gpufleet-node-exporter.service"
STOP_GRACE_S: Final = 15
"""From the end of the engine's own shutdown timeout to SIGKILL: it may hang there (its clients decide)."""
KEY_FILE: Final = PurePosixPath("/run/gpu-fleet/engine.env")
"""On an instance: the engine's API key as a variable of its container. In memory, for root alone."""


STOPPING_FILE: Final = PurePosixPath("/run/gpu-fleet/engine-stopping")
"""On an instance: there while the engine is stopped. The agent then tells routers to send nothing."""
STOP_DELAY: Final = timedelta(seconds=3)
"""From telling routers to SIGTERM. vLLM answers new requests with 500 from then on, and stays healthy meanwhile."""
USER: Final = (2000, 0)
"""User and group of the engine's container: `vllm` of its image, which is made to run as that (vllm#40275)."""
EXPORTER_GROUP: Final = 2001
"""Group of the GPU exporter's container and of nothing else: the packet filter knows it by that."""
SCRATCH: Final = ".vllm"
"""Folder beside the models that the container may write: compiled kernels, which the next start reads again."""
_LATE_KERNELS: Final = "/usr/local/lib/python3.12/dist-packages/flashinfer_cubin/cubins/flashinfer"
"""Where FlashInfer makes links into its own package for some mixtures of experts (flashinfer#2834); the image lacks
the folder."""
METADATA: Final = {"iptables": "169.254.169.254", "ip6tables": "fd00:ec2::254,fd20:ce::254"}
"""By the command that makes rules about it: where both clouds hand out a machine's credentials."""


class EngineKind(StrEnum):
    """Engines that are known."""

    VLLM = "vllm"


class ArgumentError(ValueError):
    """An argument of the settings that an instance must decide, or that cannot be one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """How to talk to an engine and to read it."""

    health_path: str
    """200 when it can serve. It stays 200 while the engine drains, so it does not tell of draining."""
    key_variable: str
    """Of its environment: with it, pages that compute ask for `Authorization: Bearer`; health and metrics do not."""
    running: Metric
    waiting: Metric
    input_tokens: Metric
    cached_input_tokens: Metric
    output_tokens: Metric
    kv_cache_usage: Metric


VLLM: Final = Interface(
    health_path="/health",
    key_variable="VLLM_API_KEY",
    running=metrics.REQUESTS_RUNNING,
    waiting=metrics.REQUESTS_WAITING,
    input_tokens=metrics.PROMPT_TOKENS,
    cached_input_tokens=metrics.PROMPT_TOKENS_CACHED,
    output_tokens=metrics.GENERATION_TOKENS,
    kv_cache_usage=metrics.KV_CACHE_USAGE,
)

INTERFACES: Final[Mapping[EngineKind, Interface]] = {EngineKind.VLLM: VLLM}


def renamed(interfaces: Iterable[Interface]) -> dict[str, str]:
    """What these engines call their numbers, and vLLM's name for each, by which watchdogs and reports ask."""
    numbers = [field.name for field in fields(Interface) if isinstance(getattr(VLLM, field.name), Metric)]
    pairs = ((getattr(spoken, name).name, getattr(VLLM, name).name) for spoken in interfaces for name in numbers)
    return {theirs: ours for theirs, ours in pairs if theirs != ours}


_DECIDED_ON_THE_INSTANCE: Final = frozenset(
    {
        "--model",
        "--host",
        "--port",
        "--served-model-name",
        "--shutdown-timeout",
        "--api-key",
        "--download-dir",
        "--root-path",
        "--uds",
    }
)
"""Flags that the agent gives itself."""
FLAGS: Final = frozenset(
    {
        # how a model is laid out over GPUs
        "--tensor-parallel-size",
        "-tp",
        "--pipeline-parallel-size",
        "-pp",
        "--data-parallel-size",
        "-dp",
        "--enable-expert-parallel",
        "--api-server-count",
        "-asc",
        "--disable-custom-all-reduce",
        "--cpu-offload-gb",
        # memory and batches
        "--max-model-len",
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--kv-cache-dtype",
        "--block-size",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--max-num-queued-reqs",
        "--long-prefill-token-threshold",
        "--enable-chunked-prefill",
        "--no-enable-chunked-prefill",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--prefix-caching-hash-algo",
        "--scheduling-policy",
        "--async-scheduling",
        "--no-async-scheduling",
        "--limit-mm-per-prompt",
        "--mm-processor-cache-gb",
        # numbers and kernels
        "--dtype",
        "--quantization",
        "-q",
        "--enforce-eager",
        "--seed",
        "--safetensors-load-strategy",
        "--load-format",
        "--speculative-config",
        "--runner",
        "--convert",
        # answers
        "--max-logprobs",
        "--generation-config",
        "--override-generation-config",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "--reasoning-parser",
        "--chat-template-content-format",
        "--enable-prompt-tokens-details",
        "--enable-force-include-usage",
        # logs, without prompts
        "--uvicorn-log-level",
        "--disable-log-stats",
        "--no-enable-log-requests",
    }
)
"""Flags that settings may give. What is not here was not looked at, or reads code (`--middleware`, plugins), files of
the machine (`--config`, `--allowed-local-media-path`), other formats of weights, or writes prompts into logs."""
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "--load-format": frozenset({"auto", "safetensors", "dummy", "runai_streamer", "fastsafetensors"})
}
"""Values of flags whose other values are not safe: pickles run code."""
_REFUSED_VARIABLES: Final = re.compile(
    r"(?:LD_|PYTHON|HF_(?!HUB_DISABLE_)|HUGGING_?FACE|TRANSFORMERS_|GLIBC_|TORCH_EXTENSIONS|TRITON_CACHE"
    r"|VLLM_ALLOW_|VLLM_SERVER_DEV)\w*"
    r"|VLLM_(?:PLUGINS|CACHE_ROOT|CONFIG_ROOT|ASSETS_CACHE|USE_MODELSCOPE|HOST_IP|API_KEY|DEBUG_\w+|TORCH_PROFILER_DIR"
    r"|NCCL_SO_PATH|LOGGING_CONFIG_PATH|NO_USAGE_STATS|HTTP_TIMEOUT_KEEP_ALIVE)"
    r"|TORCHINDUCTOR_CACHE_DIR|XDG_\w+|USER|LOGNAME"
    r"|(?:HTTP|HTTPS|ALL|NO)_PROXY|PATH|HOME|SHELL|IFS|BASH_ENV|ENV|DO_NOT_TRACK|AWS_\w+|GOOGLE_\w+",
    re.IGNORECASE,
)
"""Variables by which an engine loads other code, opens pages that change it, asks strangers for weights, or sends
what it has elsewhere; and those that the instance sets."""


_KEY: Final = re.compile(r"[0-9a-f]{64}")
NO_KEY: Final = "holds no engine key (64 hexadecimal digits, as `gpufleet bootstrap` makes one)"


def is_key(text: str) -> bool:
    """Whether it has the form of an environment's engine key: 256 bits in hex.

    Anything else, another secret for example, is not shown to an engine.
    """
    return _KEY.fullmatch(text) is not None


_FLAG: Final = re.compile(r"--[a-z][a-z0-9.-]*(=.*)?|-[a-z]{1,4}")


def check_arguments(args: Sequence[str]) -> None:
    """Refuse what settings may not say. Raises ArgumentError that names the argument and the remedy.

    Whether vLLM takes a flag's value is for its own parser to say, which runs in the tests with real vLLM.
    """
    for _, error in wrong_arguments(args):
        raise error


def wrong_arguments(args: Sequence[str]) -> Iterator[tuple[int, ArgumentError]]:
    """What of the arguments settings may not say: the place of each, and what is wrong with it.

    A flag is written out: vLLM's parser takes any unambiguous beginning of one, and the last of two wins.
    """
    for index, argument in enumerate(args):
        if any(ord(character) < 32 for character in argument):
            yield index, ArgumentError(f"engine argument {argument!r}: holds a control character")
            continue
        name, separator, value = argument.partition("=")
        if not argument.startswith("-") or _is_number(argument):
            flag = args[index - 1] if index else ""
            if flag in _VALUES and (wrong := _wrong_value(flag, argument)) is not None:
                yield index, wrong
        elif not _FLAG.fullmatch(argument):
            yield index, ArgumentError(f"engine argument {argument!r}: is no flag")
        elif name in _DECIDED_ON_THE_INSTANCE:
            text = f"engine argument {name}: is decided on the instance; remove it from the settings"
            yield index, ArgumentError(text)
        elif name not in FLAGS:
            close = get_close_matches(name, sorted(FLAGS)) or ["a flag that docs/security.md lists"]
            text = (
                f"engine argument {name}: is not one that settings may give; remove it or write {' or '.join(close)}"
            )
            yield index, ArgumentError(text)
        elif separator and name in _VALUES and (wrong := _wrong_value(name, value)) is not None:
            yield index, wrong


def _wrong_value(flag: str, value: str) -> ArgumentError | None:
    if value in _VALUES[flag]:
        return None
    known = ", ".join(sorted(_VALUES[flag]))
    return ArgumentError(f"engine argument {flag}: {value!r} is not safe to load; write one of {known}")


def check_environment(names: Iterable[str]) -> None:
    """Refuse variables that the instance sets, and those that let an engine run other code or ask strangers.

    Raises ArgumentError that names the variable and the remedy.
    """
    for name in names:
        if any(name == known.key_variable for known in INTERFACES.values()):
            raise ArgumentError(f"engine variable {name}: is decided on the instance; remove it from the settings")
        if _REFUSED_VARIABLES.fullmatch(name):
            raise ArgumentError(f"engine variable {name}: is not one that settings may set; remove it")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """What is chosen about a vLLM server, typed. None: vLLM's own default."""

    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Copies of the model behind one address; each has `tensor × pipeline` GPUs of its own."""
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool | None = None
    enable_expert_parallel: bool = False
    speculative_config: str | None = None
    max_num_queued_reqs: int | None = None
    safetensors_load_strategy: str | None = None
    enforce_eager: bool = False

    def arguments(self) -> tuple[str, ...]:
        """The arguments of `vllm serve`, in the order of the fields; only what differs from vLLM's defaults."""
        given: list[str] = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            flag = "--" + name.replace("_", "-")
            if value is True:
                given.append(flag)
            elif value is False and name == "enable_prefix_caching":
                given.append("--no-enable-prefix-caching")
            elif value in (None, False) or (value == 1 and name.endswith("_parallel_size")):
                continue
            else:
                given += [flag, str(value)]
        return tuple(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """One engine on one instance."""

    kind: EngineKind
    image: str
    """By digest: `registry/name@sha256:…`."""
    model_path: PurePosixPath
    served_name: str
    host: str
    shutdown_timeout_s: int
    port: int = PORT
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def serve_arguments(serve: Serve) -> tuple[str, ...]:
    """What follows the image: the program's own arguments. Raises ArgumentError."""
    check_arguments(serve.args)
    return (
        "serve",
        str(serve.model_path),
        "--served-model-name",
        serve.served_name,
        "--host",
        serve.host,
        "--port",
        str(serve.port),
        "--shutdown-timeout",
        str(serve.shutdown_timeout_s),
        *serve.args,
        *_one_front(serve.args),
    )


def _one_front(args: Sequence[str]) -> tuple[str, ...]:
    """One API server before several copies of a model, unless the settings say otherwise.

    vLLM starts as many as there are copies (`api_server_count`, vllm/entrypoints/cli/serve.py of 0.32), and several
    share a page without `process_*` (vllm/v1/metrics/prometheus.py): the idle watchdog could never judge it.
    """
    flags = {arg.partition("=")[0] for arg in args}
    copies = bool(flags & {"--data-parallel-size", "-dp"})
    return ("--api-server-count", "1") if copies and not flags & {"--api-server-count", "-asc"} else ()


_OFFLINE: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Weights come from the cache alone: no silent way back to a hub, and no word to strangers."""


_KEPT_OPEN: Final[Mapping[str, str]] = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75"}
"""Seconds that an idle connection of the router may last; vLLM's own 5 would end some just as a request comes."""


def _places(scratch: PurePosixPath) -> Mapping[str, str]:
    """What an engine needs that is not root, on a read-only system: a home, a name, and folders to compile in."""
    return {
        "HOME": str(scratch),
        # PyTorch asks for the user's name, and a number that the image does not know has none
        "USER": "vllm",
        "LOGNAME": "vllm",
        "XDG_CACHE_HOME": f"{scratch}/cache",
        "VLLM_CACHE_ROOT": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/torchinductor",
        "TRITON_CACHE_DIR": f"{scratch}/triton",
    }


def _no_metadata() -> Iterator[str]:
    """Commands, for before each start: only root, so the node agent, reaches instance metadata from this machine.

    The container is in the machine's network. On Google Cloud the address also serves names and time, over UDP and
    port 53: those stay open. A rule that is there is made anew, so there is one.
    """
    for command, address in METADATA.items():
        rule = f"OUTPUT -d {address} -p tcp ! --dport 53 -m owner ! --uid-owner 0 -j REJECT"
        yield f"-{command} -w -D {rule}"
        # a kernel without IPv6 has no such way
        yield f"{'-' if command == 'ip6tables' else ''}{command} -w -I {rule}"


def _no_connections(group: int) -> Iterator[str]:
    """Commands, for before each start: processes of the group answer whoever asks, and open no connection."""
    rule = f"OUTPUT -m owner --gid-owner {group} -m conntrack --ctstate NEW -j REJECT"
    for command in METADATA:
        yield f"-{command} -w -D {rule}"
        yield f"{'-' if command == 'ip6tables' else ''}{command} -w -I {rule}"


def engine_unit(
    serve: Serve,
    *,
    cache_dir: PurePosixPath,
    key_file: PurePosixPath = KEY_FILE,
    stopping_file: PurePosixPath = STOPPING_FILE,
    devices: Sequence[str] = (),
) -> str:
    """The systemd unit that runs the engine's container, with these devices beside the GPUs. Raises ArgumentError.

    The API key is in `key_file` and nowhere else: a command line is read by everybody on the machine.
    `KillMode=mixed` signals the container's client alone, which hands SIGTERM to the engine's main process: vLLM
    drains only when its workers are left alone. Options of docker are written as one word each (`--name=value`).

    The container is not root, has no capabilities, and writes memory and its scratch folder alone. The unit does not
    start where metadata cannot be closed to it.

    Whoever stops the unit (the machine's own shutdown, a person), routers are notified before the engine:
    ExecStop writes `stopping_file` and waits. An agent that has drained writes the file itself: nothing waits twice.
    """
    check_environment(serve.env)
    scratch, (user, group) = cache_dir / SCRATCH, USER
    variables = {**serve.env, **_OFFLINE, **_KEPT_OPEN, **_places(scratch)}
    command = [
        "docker",
        "run",
        "--rm",
        "--name=gpufleet-engine",
        "--network=host",
        "--ipc=host",
        "--gpus=all",
        f"--user={user}:{group}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        # docker's own default is noexec: compilers try what they made there
        "--tmpfs=/tmp:exec,nosuid,nodev,mode=1777",
        f"--tmpfs={_LATE_KERNELS}:nosuid,nodev,mode=1777",
        *(f"--device={device}" for device in devices),
        "--ulimit=memlock=-1",
        "--stop-signal=SIGTERM",
        "--entrypoint=vllm",
        f"--volume={cache_dir}:{cache_dir}:ro",
        f"--volume={scratch}:{scratch}:rw",
        f"--env-file={key_file}",
        *(f"--env={name}={value}" for name, value in variables.items()),
        serve.image,
        *serve_arguments(serve),
    ]
    return _unit(
        description=f"gpu-fleet engine: {serve.kind} serving {serve.served_name}",
        command=command,
        before=(
            "-docker rm --force gpufleet-engine",
            f"rm -f {quote(str(stopping_file))}",
            f"install -d -o {user} -g {group} -m 0700 {quote(str(scratch))}",
            *_no_metadata(),
        ),
        stop_s=serve.shutdown_timeout_s + STOP_GRACE_S,
        more=(
            f"ExecStop=-sh -c {quote(_stop_script(stopping_file))}",
            "Restart=on-failure",
            "RestartSec=5",
            "OOMPolicy=stop",
            "LimitMEMLOCK=infinity",
        ),
    )


def _stop_script(file: PurePosixPath) -> str:
    name = shlex.quote(str(file))
    return f"test -e {name} || {{ touch {name}; exec sleep {STOP_DELAY.total_seconds():g}; }}"


def dcgm_unit(image: str, *, host: str) -> str:
    """The systemd unit that runs the GPU exporter's container.

    `gpu_active` and three other numbers are profiling fields (DCGM_FI_PROF_…): the driver gives them to CAP_SYS_ADMIN
    alone (NVreg_RestrictProfilingToAdminUsers), and DCGM takes no other user than root for them. So it is root with
    that one capability, and nothing else: it writes memory alone, and opens no connection, none to metadata either.
    """
    port = metrics.PORTS[metrics.Source.DCGM]
    words = [
        "--gpus=all",
        f"--user=0:{EXPORTER_GROUP}",
        "--cap-drop=ALL",
        "--cap-add=SYS_ADMIN",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--tmpfs=/tmp:nosuid,nodev,noexec",
        "--memory=2g",
        # the image's own script writes its system (ldconfig, setcap) before it runs this
        "--entrypoint=dcgm-exporter",
        image,
        "-a",
        f"{host}:{port}",
        "-f",
        "/etc/dcgm-exporter/dcp-metrics-included.csv",
        "-c",
        "1000",
    ]
    return _exporter_unit("GPU exporter", "gpufleet-dcgm", words, tuple(_no_connections(EXPORTER_GROUP)))


_HOST_COLLECTORS: Final = ("cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "pressure")
"""Of node_exporter's many: what a serving machine is looked at for."""


def node_exporter_unit(image: str, *, host: str) -> str:
    """The systemd unit that runs node_exporter's container. It sees the machine's files, and can write none."""
    words = [
        "--pid=host",
        "--user=65534:65534",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--memory=128m",
        "--volume=/:/host:ro,rslave",
        image,
        "--path.rootfs=/host",
        f"--web.listen-address={host}:{metrics.PORTS[metrics.Source.HOST]}",
        "--web.disable-exporter-metrics",
        "--collector.disable-defaults",
        *(f"--collector.{name}" for name in _HOST_COLLECTORS),
        # Debian's build leaves /mnt out by default, where the cache's disk is
        "--collector.filesystem.mount-points-exclude=^/(dev|proc|run|sys|var/lib/docker/.+)($|/)",
    ]
    return _exporter_unit("node exporter", "gpufleet-node-exporter", words)


def _exporter_unit(what: str, name: str, words: Sequence[str], before: Sequence[str] = ()) -> str:
    """Of a container in the machine's own network: options, image and arguments."""
    return _unit(
        description=f"gpu-fleet {what}",
        command=["docker", "run", "--rm", f"--name={name}", "--network=host", *words],
        before=(f"-docker rm --force {name}", *before),
        stop_s=10,
        more=("Restart=always", "RestartSec=5"),
    )


def _unit(
    *, description: str, command: Sequence[str], before: Sequence[str], stop_s: int, more: Sequence[str]
) -> str:
    """`before`: commands for before each start; a leading `-`: it may fail."""
    lines = [
        "[Unit]",
        f"Description={description}",
        "Wants=network-online.target",
        "After=network-online.target docker.service",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=4",
        "",
        "[Service]",
        "Type=exec",
        *(f"ExecStartPre={one}" for one in before),
        "ExecStart=" + " ".join(quote(word) for word in command),
        "KillMode=mixed",
        "KillSignal=SIGTERM",
        f"TimeoutStopSec={stop_s}",
        *more,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def quote(word: str) -> str:
    """A word of ExecStart as systemd reads it: specifiers and variables are switched off."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not escaped or re.search(r"[\s\"'\\;]", escaped) else escaped
