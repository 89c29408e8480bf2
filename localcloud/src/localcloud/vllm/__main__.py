"""`python -m localcloud.vllm serve DIR …` runs real `vllm serve` with what two shared CPU cores need.

Arguments that are given win. Standard input, output and the process id are vLLM's own (exec).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from localcloud.engine_environment import VLLM
from localcloud.vllm import ENVIRONMENT

DEFAULTS: Final[Mapping[str, str | None]] = {
    "--enforce-eager": None,
    "--distributed-executor-backend": "uni",
    "--kv-cache-memory-bytes": "64M",
    "--block-size": "32",
    "--max-num-seqs": "16",
}
"""Eager and one process: starts in 13 s with 1 GB instead of 40 s with 2.5 GB."""
SHORT: Final = "/dev/shm"  # noqa: S108 - see `sockets`


def command(given: Sequence[str]) -> list[str]:
    """The arguments with the defaults that were not given."""
    names = {word.partition("=")[0] for word in given}
    more: list[str] = []
    for flag, value in DEFAULTS.items():
        if flag not in names:
            more += [flag] if value is None else [flag, value]
    return [*given, *more]


def sockets() -> Mapping[str, str]:
    """Where vLLM's processes meet: a socket's path has 107 characters at most, and a machine's TMPDIR may be longer.

    A machine's `/dev/shm` is a folder of its own; where it cannot be written to vLLM's own choice stays.
    """
    return {"VLLM_RPC_BASE_PATH": SHORT} if os.access(SHORT, os.W_OK) else {}


def main() -> None:
    """Become vLLM."""
    program = VLLM.link / "bin" / "vllm"
    if not program.exists():
        sys.exit("vLLM is not installed here: run `python -m localcloud.engine_environment vllm`")
    environment = {**sockets(), **os.environ, **ENVIRONMENT}
    os.execve(program, [str(program), *command(sys.argv[1:])], environment)  # noqa: S606


if __name__ == "__main__":
    main()
