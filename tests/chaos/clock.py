"""A wall clock that can be changed for selected processes."""

from pathlib import Path
from typing import Final

from tests.chaos.preload import Preload

SOURCE: Final = r"""
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, now);
    if (!done && number && id == CLOCK_REALTIME) now->tv_sec += *number;
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


def make_clock(folder: Path) -> Preload:
    """A library whose number is the offset of the clock in seconds."""
    return Preload(folder, "clock", SOURCE)
