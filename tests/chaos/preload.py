"""LD_PRELOAD libraries, built where a compiler exists. They change what only the control host observes."""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HEAD: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const volatile int64_t *number;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("@VARIABLE@");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *seen = mmap(NULL, sizeof *number, PROT_READ, MAP_SHARED, file, 0);
    if (seen != MAP_FAILED) number = seen;
    close(file);
}
"""


class Preload:
    """One such library, and the number that every process with it reads: 0 until it is set."""

    def __init__(self, folder: Path, name: str, source: str) -> None:
        """`source`: C code that may read `number`. It is NULL in a process without the environment variable."""
        self.variable: Final = f"GPUFLEET_CHAOS_{name.upper()}"
        self.file: Final = folder / name
        self.library: Final = folder / f"{name}.so"
        self.set(0)
        compiler = shutil.which("cc")
        if compiler is not None:
            command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(self.library), "-ldl"]
            whole = _HEAD.replace("@VARIABLE@", self.variable) + source
            subprocess.run(command, input=whole.encode(), check=True, timeout=180)

    @property
    def is_there(self) -> bool:
        """Whether a compiler exists."""
        return self.library.exists()

    def set(self, number: int) -> None:
        """Set the number that every process reads."""
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("q", number))


def environment(libraries: Sequence[Preload]) -> dict[str, str]:
    """Environment of a process that loads these libraries."""
    there = [one for one in libraries if one.is_there]
    if not there:
        return {}
    return {"LD_PRELOAD": ":".join(str(one.library) for one in there)} | {
        one.variable: str(one.file) for one in there
    }
