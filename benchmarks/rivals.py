"""Runs routers of other projects where they are installed. `GPUFLEET_BENCH_VLLM_ROUTER` and `GPUFLEET_BENCH_LITELLM`
contain the path of each program, which has its own environment.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

BODY: Final = '{"model": "chat", "messages": [{"role": "user", "content": "%s"}]}' % ("x" * 900)
_JSON: Final = {"Content-Type": "application/json"}
_START_LIMIT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A running router of another project."""

    name: str
    url: str
    process: int


@contextmanager
def rivals(folder: Path, engine: str) -> Iterator[tuple[tuple[Rival, ...], list[str]]]:
    """Run each router in front of one engine. Yield the routers that respond, and a sentence about each other one."""
    with ExitStack() as stack:
        made = (
            stack.enter_context(vllm_router(folder, [engine], "round_robin")),
            stack.enter_context(_litellm(folder, engine)),
        )
        found = tuple(one for one in made if isinstance(one, Rival))
        yield found, [one for one in made if isinstance(one, str)]


@contextmanager
def vllm_router(folder: Path, engines: Iterable[str], policy: str) -> Iterator[Rival | str]:
    """Run vLLM's own router in front of these engines. Yield it, or the reason why it does not run."""
    program = os.environ.get("GPUFLEET_BENCH_VLLM_ROUTER")
    if program is None:
        yield _absent("vllm-router", "`pip install vllm-router`; GPUFLEET_BENCH_VLLM_ROUTER names its program")
        return
    command = [program, "--worker-urls", *engines, "--policy", policy]
    with _running(folder, "vllm-router", command) as made:
        yield made


@contextmanager
def _litellm(folder: Path, engine: str) -> Iterator[Rival | str]:
    program = os.environ.get("GPUFLEET_BENCH_LITELLM")
    if program is None:
        yield _absent("LiteLLM", "`pip install 'litellm[proxy]'`; GPUFLEET_BENCH_LITELLM names its program")
        return
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: chat\n    litellm_params:\n      model: openai/chat\n"
        f"      api_base: {engine}/v1\n      api_key: none\n"
        # it does not start without a key, and a key would add work that the other routers do not have
        "general_settings:\n  dangerously_permit_weak_or_unset_master_key: true\n"
    )
    with _running(folder, "LiteLLM", [program, "--config", str(config)]) as made:
        yield made


def free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _absent(name: str, remedy: str) -> str:
    return f"{name} was not run: it is not installed here ({remedy})."


@contextmanager
def _running(folder: Path, name: str, command: list[str]) -> Iterator[Rival | str]:
    port, log = free_port(), folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], cwd=folder, stdout=output, stderr=output
        )
    try:
        url = f"http://127.0.0.1:{port}"
        if why := _refusal(url):
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            yield f"{name} did not answer ({why}); its last output line: {' '.join(last)[-200:] or 'none'}."
        else:
            yield Rival(name=name, url=url, process=process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _refusal(url: str) -> str:
    """Return an empty text as soon as the URL returns 200, or the last other result at the timeout."""
    end, why = time.monotonic() + _START_LIMIT_S, ""
    while time.monotonic() < end:
        try:
            answer = httpx.post(f"{url}/v1/chat/completions", content=BODY.encode(), headers=_JSON, timeout=5)
            if answer.status_code == 200:
                return ""
            why = f"{answer.status_code} {answer.text[:150]}"
        except httpx.HTTPError as error:
            why = repr(error)
        time.sleep(0.5)
    return why
