"""`python -m localcloud.sglang -c CODE --model-path DIR …` runs real SGLang with what two shared CPU cores need.

The arguments are those of the container's `python3` (`serving.engines.sglang`). Arguments that are given take
precedence. The process ID stays (exec).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from localcloud.engine_environment import SGLANG

DEFAULTS: Final[Mapping[str, str | None]] = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--disable-cuda-graph": None,
    "--disable-overlap-schedule": None,
    "--mem-fraction-static": "0.1",
    "--max-total-tokens": "16384",
}
"""Settings may contain each of these flags."""
REPLACEMENT: Final = Path(__file__).with_name("replacement")
"""The package that SGLang imports for a kernel that it lacks on the CPU."""


def command(given: Sequence[str]) -> list[str]:
    """The arguments with the defaults that were not given."""
    names = {argument.partition("=")[0] for argument in given}
    more: list[str] = []
    for flag, value in DEFAULTS.items():
        if flag not in names:
            more += [flag] if value is None else [flag, value]
    return [*given, *more]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The variables of SGLang's process. Its packages have no byte code at first: without it each start takes
    minutes.
    """
    kept = {name: value for name, value in given.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(REPLACEMENT), "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Become SGLang."""
    program = SGLANG.link / "bin" / "python"
    if not program.exists():
        sys.exit("SGLang is not installed here: run `python -m localcloud.engine_environment sglang`")
    os.execve(program, [str(program), *command(sys.argv[1:])], environment(os.environ))  # noqa: S606


if __name__ == "__main__":
    main()
