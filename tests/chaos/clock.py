"""A wall clock that can be set for some processes alone: a library before libc's, made where there is a compiler."""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GPUFLEET_CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *seen = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (seen != MAP_FAILED) step = seen;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, now);
    if (!done && step && id == CLOCK_REALTIME) now->tv_sec += *step;
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


class Clock:
    """Steps the clock of every process that was started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(struct.pack("q", 0))
        self._library = folder / "clock.so"
        compiler = shutil.which("cc")
        if compiler is not None:
            words = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(self._library), "-ldl"]
            subprocess.run(words, input=SOURCE.encode(), check=True, timeout=60)

    @property
    def can_step(self) -> bool:
        """Whether there was a compiler."""
        return self._library.exists()

    @property
    def environment(self) -> dict[str, str]:
        if not self.can_step:
            return {}
        return {"LD_PRELOAD": str(self._library), "GPUFLEET_CHAOS_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        """From now on those clocks are off by so much."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))
