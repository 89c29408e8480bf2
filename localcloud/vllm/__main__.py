"""`python -m localcloud.vllm serve DIR …` runs real `vllm serve` with what two shared CPU cores need.

Arguments that are given win. Standard input, output and the process id are vLLM's own (exec).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from localcloud.vllm import ENVIRONMENT
from localcloud.vllm.environment import LINK

DEFAULTS: Final[Mapping[str, str | None]] = {
    "--enforce-eager": None,
    "--distributed-executor-backend": "uni",
    "--kv-cache-memory-bytes": "64M",
    "--block-size": "32",
    "--max-num-seqs": "16",
}
"""Eager and one process: starts in 13 s with 1 GB instead of 40 s with 2.5 GB."""


def command(given: Sequence[str]) -> list[str]:
    """The arguments with the defaults that were not given."""
    names = {word.partition("=")[0] for word in given}
    more: list[str] = []
    for flag, value in DEFAULTS.items():
        if flag not in names:
            more += [flag] if value is None else [flag, value]
    return [*given, *more]


def main() -> None:
    """Become vLLM."""
    program = LINK / "bin" / "vllm"
    if not program.exists():
        sys.exit("vLLM is not installed here: run `python -m localcloud.vllm.environment`")
    os.execve(program, [str(program), *command(sys.argv[1:])], {**os.environ, **ENVIRONMENT})  # noqa: S606


if __name__ == "__main__":
    main()
