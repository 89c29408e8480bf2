"""Libraries before libc's, made where there is a compiler: they change what the control host alone sees."""

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
    """One such library, and the number that every process which loaded it reads: 0 until it is set."""

    def __init__(self, folder: Path, name: str, source: str) -> None:
        """`source`: C, to which `number` is known; it is NULL in a process that was started without."""
        self.variable: Final = f"GPUFLEET_CHAOS_{name.upper()}"
        self.file: Final = folder / name
        self.library: Final = folder / f"{name}.so"
        self.set(0)
        compiler = shutil.which("cc")
        if compiler is not None:
            words = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(self.library), "-ldl"]
            whole = _HEAD.replace("@VARIABLE@", self.variable) + source
            subprocess.run(words, input=whole.encode(), check=True, timeout=180)

    @property
    def is_there(self) -> bool:
        """Whether there was a compiler."""
        return self.library.exists()

    def set(self, number: int) -> None:
        """From now on every process reads this."""
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("q", number))


def environment(libraries: Sequence[Preload]) -> dict[str, str]:
    """For a process that is to load these."""
    there = [one for one in libraries if one.is_there]
    if not there:
        return {}
    return {"LD_PRELOAD": ":".join(str(one.library) for one in there)} | {
        one.variable: str(one.file) for one in there
    }
