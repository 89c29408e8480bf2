"""A PostgreSQL server of the tests' own: Debian's binaries, a private folder, a socket, no port."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def binaries() -> Path | None:
    """The newest PostgreSQL of Debian, or whatever is on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@contextmanager
def running(folder: Path) -> Generator[str]:
    """A server that lives as long as the block. Gives the URL of its database."""
    home = binaries()
    assert home is not None, "PostgreSQL is missing: apt-get install postgresql"
    data, socket = folder / "data", folder / "s"
    socket.mkdir(parents=True)
    prefix: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        shutil.chown(socket, "postgres")
        folder.chmod(0o755)
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    call = {"check": True, "timeout": 60, "stdout": subprocess.DEVNULL}
    subprocess.run([*prefix, str(home / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-N"], **call)
    options = f"-c listen_addresses='' -c unix_socket_directories='{socket}' -c fsync=off"
    start = [*prefix, str(home / "pg_ctl"), "-D", str(data), "-o", options, "-w", "-l", str(folder / "s" / "log")]
    subprocess.run([*start, "start"], **call)
    try:
        yield f"postgresql://postgres@/postgres?host={socket}"
    finally:
        subprocess.run([*prefix, str(home / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop"], **call)
