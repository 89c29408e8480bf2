"""Host names for the addresses of a run, whose resolution can be disabled: `cloud.127-240-0-2.chaos.test` is
127.240.0.2."""

from pathlib import Path
from typing import Final

from tests.chaos.preload import Preload

SUFFIX: Final = ".chaos.test"
SOURCE: Final = r"""
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) real = (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))
        dlsym(RTLD_NEXT, "getaddrinfo");
    const char *end = node ? strstr(node, "@SUFFIX@") : NULL;
    if (!end || !number) return real(node, service, hints, found);
    if (*number) {
        sleep((unsigned)*number);
        return EAI_AGAIN;
    }
    const char *begin = end;
    while (begin > node && begin[-1] != '.') begin--;
    unsigned a, b, c, d;
    if (sscanf(begin, "%u-%u-%u-%u", &a, &b, &c, &d) != 4) return EAI_NONAME;
    char address[64];
    snprintf(address, sizeof address, "%u.%u.%u.%u", a, b, c, d);
    return real(address, service, hints, found);
}
""".replace("@SUFFIX@", SUFFIX)


def make_names(folder: Path) -> Preload:
    """A library whose number disables resolution: while it is not 0, each lookup fails after that number of
    seconds."""
    return Preload(folder, "names", SOURCE)


def name_of(word: str, host: str) -> str:
    """The host name of an address."""
    return f"{word}.{host.replace('.', '-')}{SUFFIX}"


def url(names: Preload, word: str, host: str, port: int) -> str:
    """A URL with the host name of an address; with the address itself where there is no compiler."""
    known = name_of(word, host) if names.is_there else host
    return f"http://{known}:{port}"
