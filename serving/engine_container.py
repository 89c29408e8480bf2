"""The engine's container: its arguments, its environment and its systemd unit.

vLLM is the only engine that the fleet starts; `serving.engines` states what the numbers of all engines mean.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines import CONTRACTS, EngineKind

PORT: Final = metrics.PORTS[metrics.Source.ENGINE]
UNIT: Final = "gpufleet-engine.service"
DCGM_UNIT: Final = "gpufleet-dcgm.service"
NODE_EXPORTER_UNIT: Final = "gpufleet-node-exporter.service"
STOP_GRACE_S: Final = 15
"""From the end of the engine's own shutdown timeout to SIGKILL. The engine may hang there because of its clients."""
KEY_FILE: Final = PurePosixPath("/run/gpu-fleet/engine.env")
"""On an instance: a file with the engine's API key as a container variable. In memory; only root can read it."""


STOPPING_FILE: Final = PurePosixPath("/run/gpu-fleet/engine-stopping")
"""On an instance: this file exists while the engine stops. The agent then notifies routers to send no requests."""
STOP_DELAY: Final = timedelta(seconds=3)
"""Time from that notification to SIGTERM. After SIGTERM, vLLM answers new requests with 500 but stays healthy."""
USER: Final = (2000, 0)
"""User and group of the engine's container: `vllm` of its image, which is built to run as this user (vllm#40275)."""
EXPORTER_GROUP: Final = 2001
"""Group of the GPU exporter's container, and of nothing else. The packet filter matches on it."""
SCRATCH: Final = ".vllm"
"""Folder next to the models that the container may write. It keeps compiled kernels for the next start."""
_LATE_KERNELS: Final = "/usr/local/lib/python3.12/dist-packages/flashinfer_cubin/cubins/flashinfer"
"""Folder inside its own package where FlashInfer creates links for some mixture-of-experts models (flashinfer#2834);
the image lacks this folder."""
METADATA: Final = {"iptables": "169.254.169.254", "ip6tables": "fd00:ec2::254,fd20:ce::254"}
"""Addresses where both clouds serve a machine's credentials, by the command that filters them."""


class ArgumentError(ValueError):
    """An argument that settings must not contain, or that is invalid."""


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
"""Flags that only the agent sets."""
FLAGS: Final = frozenset(
    {
        # distribution of a model over GPUs
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
        # responses
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
"""Flags that settings may contain. Other flags are not reviewed, or load code (`--middleware`, plugins), read files
of the machine (`--config`, `--allowed-local-media-path`), load other weight formats, or write prompts to logs."""
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "--load-format": frozenset({"auto", "safetensors", "dummy", "runai_streamer", "fastsafetensors"})
}
"""Allowed values of flags that also have unsafe values: pickles can run code."""
_REFUSED_VARIABLES: Final = re.compile(
    r"(?:LD_|PYTHON|HF_(?!HUB_DISABLE_)|HUGGING_?FACE|TRANSFORMERS_|GLIBC_|TORCH_EXTENSIONS|TRITON_CACHE"
    r"|VLLM_ALLOW_|VLLM_SERVER_DEV)\w*"
    r"|VLLM_(?:PLUGINS|CACHE_ROOT|CONFIG_ROOT|ASSETS_CACHE|USE_MODELSCOPE|HOST_IP|API_KEY|DEBUG_\w+|TORCH_PROFILER_DIR"
    r"|NCCL_SO_PATH|LOGGING_CONFIG_PATH|NO_USAGE_STATS|HTTP_TIMEOUT_KEEP_ALIVE)"
    r"|TORCHINDUCTOR_CACHE_DIR|XDG_\w+|USER|LOGNAME"
    r"|(?:HTTP|HTTPS|ALL|NO)_PROXY|PATH|HOME|SHELL|IFS|BASH_ENV|ENV|DO_NOT_TRACK|AWS_\w+|GOOGLE_\w+",
    re.IGNORECASE,
)
"""Variables that make an engine load other code, open endpoints that change it, fetch weights from another source, or
send data to another host; also those that the instance sets."""


_KEY: Final = re.compile(r"[0-9a-f]{64}")
NO_KEY: Final = "is not an engine key (64 hexadecimal digits; `gpufleet bootstrap` creates one)"


def is_key(text: str) -> bool:
    """Whether the text has the form of an environment's engine key: 256 bits in hexadecimal.

    The agent gives no other text, such as another secret, to an engine.
    """
    return _KEY.fullmatch(text) is not None


_FLAG: Final = re.compile(r"--[a-z][a-z0-9.-]*(=.*)?|-[a-z]{1,4}")


def check_arguments(args: Sequence[str]) -> None:
    """Reject arguments that settings must not contain. Raises ArgumentError with the argument and the fix.

    It does not check most values of flags: vLLM's own parser does, in the tests with real vLLM.
    """
    for _, error in wrong_arguments(args):
        raise error


def wrong_arguments(args: Sequence[str]) -> Iterator[tuple[int, ArgumentError]]:
    """Yield the index and the error of each argument that settings must not contain.

    Flags must be written in full: vLLM's parser accepts unambiguous prefixes, and uses the last of two values.
    """
    for index, argument in enumerate(args):
        if any(ord(character) < 32 for character in argument):
            yield index, ArgumentError(f"engine argument {argument!r}: contains a control character")
            continue
        name, separator, value = argument.partition("=")
        if not argument.startswith("-") or _is_number(argument):
            flag = args[index - 1] if index else ""
            if flag in _VALUES and (wrong := _wrong_value(flag, argument)) is not None:
                yield index, wrong
        elif not _FLAG.fullmatch(argument):
            yield index, ArgumentError(f"engine argument {argument!r}: is not a flag")
        elif name in _DECIDED_ON_THE_INSTANCE:
            text = f"engine argument {name}: is set by the node agent; remove it from the settings"
            yield index, ArgumentError(text)
        elif name not in FLAGS:
            close = get_close_matches(name, sorted(FLAGS)) or ["a flag that docs/security.md lists"]
            text = f"engine argument {name}: is not allowed in settings; remove it or write {' or '.join(close)}"
            yield index, ArgumentError(text)
        elif separator and name in _VALUES and (wrong := _wrong_value(name, value)) is not None:
            yield index, wrong


def _wrong_value(flag: str, value: str) -> ArgumentError | None:
    if value in _VALUES[flag]:
        return None
    known = ", ".join(sorted(_VALUES[flag]))
    return ArgumentError(f"engine argument {flag}: {value!r} is not safe to load; write one of {known}")


def check_environment(names: Iterable[str]) -> None:
    """Reject variables that the instance sets, and those that let an engine run other code or use other sources.

    Raises ArgumentError with the variable and the fix.
    """
    for name in names:
        if any(name == known.key_variable for known in CONTRACTS.values()):
            raise ArgumentError(f"engine variable {name}: is set by the node agent; remove it from the settings")
        if _REFUSED_VARIABLES.fullmatch(name):
            raise ArgumentError(f"engine variable {name}: is not allowed in settings; remove it")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of a vLLM server. None: vLLM's own default."""

    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Copies of the model behind one address; each uses `tensor × pipeline` GPUs of its own."""
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
        """Return the arguments of `vllm serve`, in the order of the fields, without vLLM's defaults."""
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
    """The settings of one engine on one instance."""

    kind: EngineKind
    image: str
    """With a digest: `registry/name@sha256:…`."""
    model_path: PurePosixPath
    served_name: str
    host: str
    shutdown_timeout_s: int
    port: int = PORT
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def serve_arguments(serve: Serve) -> tuple[str, ...]:
    """Return the program's arguments, which follow the image. Raises ArgumentError."""
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
    """Use one API server for several copies of a model, unless the settings specify a number.

    By default, vLLM starts one API server per copy (`api_server_count`, vllm/entrypoints/cli/serve.py of 0.32).
    Several API servers share a page without `process_*` (vllm/v1/metrics/prometheus.py), so the idle watchdog could
    never judge it.
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
"""Weights come only from the cache: no silent download from a hub, and no usage reports to third parties."""


_KEPT_OPEN: Final[Mapping[str, str]] = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75"}
"""Seconds that the engine keeps the router's idle connections open. vLLM's default of 5 would close some just when a
request arrives."""


def _places(scratch: PurePosixPath) -> Mapping[str, str]:
    """Return variables for an engine without root on a read-only system: home, user name and cache folders."""
    return {
        "HOME": str(scratch),
        # PyTorch looks up the user's name; a user ID that the image does not know has no name
        "USER": "vllm",
        "LOGNAME": "vllm",
        "XDG_CACHE_HOME": f"{scratch}/cache",
        "VLLM_CACHE_ROOT": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/torchinductor",
        "TRITON_CACHE_DIR": f"{scratch}/triton",
    }


def _no_metadata() -> Iterator[str]:
    """Yield commands that run before each start: only root (the node agent) can then reach instance metadata.

    The container uses the machine's network. On Google Cloud, the address also serves DNS and time, over UDP and
    port 53; these stay open. The commands delete an existing rule first, so there is only one.
    """
    for command, address in METADATA.items():
        rule = f"OUTPUT -d {address} -p tcp ! --dport 53 -m owner ! --uid-owner 0 -j REJECT"
        yield f"-{command} -w -D {rule}"
        # a kernel without IPv6 has no such route, so this command may fail
        yield f"{'-' if command == 'ip6tables' else ''}{command} -w -I {rule}"


def _no_connections(group: int) -> Iterator[str]:
    """Yield commands that run before each start: the group's processes accept connections but cannot open any."""
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
    """Return the systemd unit of the engine's container, with these devices besides the GPUs. Raises ArgumentError.

    The API key is only in `key_file`, because every user on the machine can read a command line.
    `KillMode=mixed` signals only the container's client, which forwards SIGTERM to the engine's main process: vLLM
    drains only when its workers receive no signal. Each docker option is one argument (`--name=value`).

    The container does not run as root, has no capabilities, and writes only to memory and its scratch folder. The
    unit does not start when it cannot block the container's access to metadata.

    However the unit is stopped (by machine shutdown or by a person), routers are notified before the engine stops:
    ExecStop writes `stopping_file` and waits. After a drain, the agent writes the file itself, so ExecStop does not
    wait again.
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
        # docker's default is noexec, but compilers run the files that they create here
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
    """Return the systemd unit of the GPU exporter's container.

    `gpu_active` and three other metrics are profiling fields (DCGM_FI_PROF_…). The driver gives them only to
    CAP_SYS_ADMIN (NVreg_RestrictProfilingToAdminUsers), and DCGM requires root for them. So the container runs as
    root with this one capability. It writes only to memory, and opens no connections, not even to metadata.
    """
    port = metrics.PORTS[metrics.Source.DCGM]
    arguments = [
        "--gpus=all",
        f"--user=0:{EXPORTER_GROUP}",
        "--cap-drop=ALL",
        "--cap-add=SYS_ADMIN",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--tmpfs=/tmp:nosuid,nodev,noexec",
        "--memory=2g",
        # the image's own script changes its file system (ldconfig, setcap) before it runs this program
        "--entrypoint=dcgm-exporter",
        image,
        "-a",
        f"{host}:{port}",
        "-f",
        "/etc/dcgm-exporter/dcp-metrics-included.csv",
        "-c",
        "1000",
    ]
    return _exporter_unit("GPU exporter", "gpufleet-dcgm", arguments, tuple(_no_connections(EXPORTER_GROUP)))


_HOST_COLLECTORS: Final = ("cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "pressure")
"""The collectors of node_exporter that are useful on a serving machine."""


def node_exporter_unit(image: str, *, host: str) -> str:
    """Return the systemd unit of node_exporter's container. It can read the machine's files, but write none."""
    arguments = [
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
        # Debian's build excludes /mnt by default, where the cache's disk is mounted
        "--collector.filesystem.mount-points-exclude=^/(dev|proc|run|sys|var/lib/docker/.+)($|/)",
    ]
    return _exporter_unit("node exporter", "gpufleet-node-exporter", arguments)


def _exporter_unit(what: str, name: str, arguments: Sequence[str], before: Sequence[str] = ()) -> str:
    """Return the unit of a container in the machine's network. `arguments`: docker options, image and arguments."""
    return _unit(
        description=f"gpu-fleet {what}",
        command=["docker", "run", "--rm", f"--name={name}", "--network=host", *arguments],
        before=(f"-docker rm --force {name}", *before),
        stop_s=10,
        more=("Restart=always", "RestartSec=5"),
    )


def _unit(
    *, description: str, command: Sequence[str], before: Sequence[str], stop_s: int, more: Sequence[str]
) -> str:
    """Return a systemd unit. `before`: commands that run before each start; with a leading `-`, one may fail."""
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
    """Quote one argument of ExecStart for systemd, with specifiers and variables disabled."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not escaped or re.search(r"[\s\"'\\;]", escaped) else escaped
