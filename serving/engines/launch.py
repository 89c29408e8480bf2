"""How the fleet starts an engine: its arguments and variables, and those that settings may give."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Final

OFFLINE: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
"""Weights come only from the cache: no silent download from a hub, and no usage reports to third parties."""
REFUSED_VARIABLES: Final = (
    r"(?:LD_|PYTHON|HF_(?!HUB_DISABLE_)|HUGGING_?FACE|TRANSFORMERS_|GLIBC_|TORCH_EXTENSIONS|TRITON_CACHE|PROMETHEUS_"
    r"|FLASHINFER_WORKSPACE)\w*"
    r"|TORCHINDUCTOR_CACHE_DIR|XDG_\w+|USER|LOGNAME|TMPDIR"
    r"|(?:HTTP|HTTPS|ALL|NO)_PROXY|PATH|HOME|SHELL|IFS|BASH_ENV|ENV|DO_NOT_TRACK|AWS_\w+|GOOGLE_\w+"
)
"""Variables that make any engine load other code, fetch weights from another source or send data to another host, and
those that the instance sets."""
_FLAG: Final = re.compile(r"--[a-z][a-z0-9._-]*(=.*)?|-[a-z]{1,4}")


class ArgumentError(ValueError):
    """An argument that settings must not contain, or that is invalid."""


class AdapterName(StrEnum):
    """How a request selects a LoRA adapter with its field `model`."""

    ANY = "by any name"
    AFTER_MODEL = "by the served name, a colon, and the adapter's own name"


MAX_ADAPTERS: Final = 32
"""Adapters of one pool: an instance fetches and loads all of them before it is ready."""
_OWN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    """What an instance decides about its engine, and what the settings add."""

    model_path: PurePosixPath
    served_name: str
    host: str
    port: int
    shutdown_timeout_s: int
    args: tuple[str, ...] = ()
    adapters: Mapping[str, PurePosixPath] = field(default_factory=dict[str, PurePosixPath])
    """LoRA adapters: the name in requests, and the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """An HAProxy on the instance in front of an engine that cannot protect itself.

    Such an engine has no API key, or endpoints outside of it that load code or other weights. It listens on loopback;
    the gate listens at the address of the instance, requires the key, passes only these paths and counts requests.
    """

    port: int
    """Loopback port of the engine's API."""
    inference: tuple[str, ...]
    """Regular expressions of whole paths that clients may POST to with the key."""
    readable: tuple[str, ...]
    """Exact paths that everybody may GET: probes and the list of models, besides the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How an engine is started in its container."""

    program: str
    """The container's entry point."""
    arguments: Callable[[EngineServer], tuple[str, ...]]
    """Returns the program's arguments."""
    key_variable: str = "GPUFLEET_ENGINE_KEY"
    """Environment variable with the API key: of the engine's container, or of its gate's. With a key, inference
    endpoints require `Authorization: Bearer`."""
    flags: frozenset[str]
    """Flags that settings may contain. Other flags are not reviewed, or load code, read files of the machine, open
    endpoints, load other weight formats, or write prompts to logs."""
    decided: frozenset[str]
    """Flags that only the agent sets."""
    splits: Mapping[str, str]
    """Flags that split one model over GPUs, and the dimension that each sets. Their values multiply."""
    values: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Allowed values of flags that also have unsafe values."""
    refused_variables: str = REFUSED_VARIABLES
    """Regular expression of variables that settings must not set, in upper or lower case."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that the instance sets, besides `OFFLINE`."""
    folders: Callable[[PurePosixPath], Mapping[str, str]]
    """Returns variables for a read-only system without root, from the folder that the container may write."""
    temporary: tuple[str, ...] = ()
    """Folders of the image that the engine writes: in memory."""
    adapters: AdapterName | None = None
    """How requests select LoRA adapters. None: the fleet starts the engine without adapters."""
    gate: Gate | None = None
    """None: the engine itself requires the key for everything that needs protection."""
    name_is_folder: bool = False
    """Whether the engine stores the served name as a folder's name, so that it must not contain `/` or `:`."""
    since: str | None = None
    """Oldest release that has these arguments; None: every release that the contract covers."""
    cuda: int
    """Oldest CUDA major version that the engine is published for."""


def folders(scratch: PurePosixPath, user: str, **more: str) -> Mapping[str, str]:
    """Return variables for an engine without root on a read-only system: home, user name and cache folders."""
    return {
        "HOME": str(scratch),
        # PyTorch looks up the user's name; a user ID that the image does not know has no name
        "USER": user,
        "LOGNAME": user,
        "XDG_CACHE_HOME": f"{scratch}/cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/torchinductor",
        "TRITON_CACHE_DIR": f"{scratch}/triton",
        **more,
    }


def loopback(server: EngineServer) -> str:
    """Return the address on which an engine with a gate listens. Raises ArgumentError: others can reach it."""
    if not ip_address(server.host).is_loopback:
        raise ArgumentError(f"engine host: {server.host} is not a loopback address; this engine needs its gate")
    return server.host


def check_arguments(launch: Launch, args: Sequence[str]) -> None:
    """Reject arguments that settings must not contain. Raises ArgumentError with the argument and the fix.

    It does not check most values of flags: the engine's own parser does.
    """
    for _, error in wrong_arguments(launch, args):
        raise error


def wrong_arguments(launch: Launch, args: Sequence[str]) -> Iterator[tuple[int, ArgumentError]]:
    """Yield the index and the error of each argument that settings must not contain.

    Flags must be written in full: the engines' parsers accept unambiguous prefixes, and use the last of two values.
    """
    for index, argument in enumerate(args):
        if any(ord(character) < 32 for character in argument):
            yield index, ArgumentError(f"engine argument {argument!r}: contains a control character")
            continue
        name, separator, value = argument.partition("=")
        if not argument.startswith("-") or _is_number(argument):
            flag = args[index - 1] if index else ""
            if (wrong := _wrong_value(launch, flag, argument)) is not None:
                yield index, wrong
        elif not _FLAG.fullmatch(argument):
            yield index, ArgumentError(f"engine argument {argument!r}: is not a flag")
        elif name in launch.decided:
            text = f"engine argument {name}: is set by the node agent; remove it from the settings"
            yield index, ArgumentError(text)
        elif name not in launch.flags:
            close = get_close_matches(name, sorted(launch.flags)) or ["a flag that docs/security.md lists"]
            text = f"engine argument {name}: is not allowed in settings; remove it or write {' or '.join(close)}"
            yield index, ArgumentError(text)
        elif separator and (wrong := _wrong_value(launch, name, value)) is not None:
            yield index, wrong


def _wrong_value(launch: Launch, flag: str, value: str) -> ArgumentError | None:
    known = launch.values.get(flag)
    if known is None or value in known:
        return None
    return ArgumentError(
        f"engine argument {flag}: {value!r} is not safe to load; write one of {', '.join(sorted(known))}"
    )


def own_name(name: str) -> str:
    """Return the last part of a name such as `chat:sql`, which the engine itself gives to the adapter."""
    return name.rpartition(":")[2]


def check_adapters(launch: Launch, served_name: str, names: Iterable[str]) -> None:
    """Reject adapters that the engine cannot serve. Raises ArgumentError with the adapter and the fix."""
    for _, error in wrong_adapters(launch, served_name, names):
        raise error


def wrong_adapters(launch: Launch, served_name: str, names: Iterable[str]) -> Iterator[tuple[str, ArgumentError]]:
    """Yield the name and the error of each adapter that the engine cannot serve.

    An engine that reads the adapter after a colon answers all other names with the model itself, without an error.
    """
    for name in names:
        if launch.adapters is None:
            yield name, ArgumentError(f"adapter {name}: the fleet starts this engine without adapters; remove it")
        elif launch.adapters is AdapterName.AFTER_MODEL:
            model, _, own = name.rpartition(":")
            if model != served_name or ":" in model or not _OWN_NAME.fullmatch(own):
                example = f"{served_name.replace(':', '-')}:{own.replace('/', '-')}"
                text = f"adapter {name}: this engine selects an adapter {launch.adapters}; write {example}"
                yield name, ArgumentError(text + " (the served name itself has no colon)" * (":" in served_name))


def check_environment(launch: Launch, names: Iterable[str]) -> None:
    """Reject variables that the instance sets, and those that let an engine run other code or use other sources.

    Raises ArgumentError with the variable and the fix.
    """
    refused = re.compile(launch.refused_variables, re.IGNORECASE)
    for name in names:
        if name == launch.key_variable or name in launch.environment:
            raise ArgumentError(f"engine variable {name}: is set by the node agent; remove it from the settings")
        if refused.fullmatch(name):
            raise ArgumentError(f"engine variable {name}: is not allowed in settings; remove it")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
