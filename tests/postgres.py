"""A PostgreSQL server of the tests' own: Debian's binaries, a private folder, a socket, no port."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def binaries() -> Path | None:
    """The newest PostgreSQL of Debian, or whatever is on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@dataclass(frozen=True, slots=True)
class Server:
    """One server, which may die and come back."""

    folder: Path

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._socket}"

    @property
    def _socket(self) -> Path:
        return self.folder / "s"

    def make(self) -> None:
        """An empty database in a folder that is not there yet."""
        self._socket.mkdir(parents=True)
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(self.folder, "postgres")
            shutil.chown(self._socket, "postgres")
            self.folder.chmod(0o755)
        self._run("initdb", "-U", "postgres", "-A", "trust", "-N")

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self._socket}' -c fsync=off"
        self._run("pg_ctl", "-o", options, "-w", "-l", str(self._socket / "log"), "start")

    def end(self) -> None:
        """At once, whoever is connected: what the disk has is what the next start finds."""
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def pid(self) -> int:
        """Of the process that takes connections."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def _run(self, program: str, *words: str) -> None:
        home = binaries()
        assert home is not None, "PostgreSQL is missing: apt-get install postgresql"
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*prefix, str(home / program), "-D", str(self.folder / "data"), *words]
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)


@contextmanager
def served(folder: Path) -> Generator[Server]:
    """A server that lives as long as the block. A block that ends it starts it again."""
    server = Server(folder)
    server.make()
    server.start()
    try:
        yield server
    finally:
        server.end()


@contextmanager
def running(folder: Path) -> Generator[str]:
    """The URL of a database whose server lives as long as the block."""
    with served(folder) as server:
        yield server.url
