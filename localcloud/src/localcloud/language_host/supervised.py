"""Run a program or a module, and end when the process that started this one ends.

usage: supervised.py program FILE_WITH_SETTINGS | supervised.py module NAME [ARGUMENT...]
Run by the project's own Python: needs nothing but the `pulumi` package.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent. Only Linux supports this; elsewhere the host ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(143)


def main() -> None:
    # not needed: a Ctrl-C reaches the whole terminal group, and the engine then ends the program in good order
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(os.environ.pop("GPUFLEET_PARENT_PID")))
    kind, name, *rest = sys.argv[1:]
    # Python puts this file's folder first in sys.path, where its modules would shadow those of the program
    del sys.path[0]
    if kind == "program":
        runpy.run_path(os.path.join(os.path.dirname(__file__), "program.py"), {"SETTINGS": name}, "__main__")  # noqa: PTH118, PTH120
    else:
        sys.argv = [name, *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
