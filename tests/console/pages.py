"""A console over a fleet that stands still, served on loopback."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpufleet.console import exporter, server
from gpufleet.console.access import Access
from gpufleet.console.alerts import Notice
from gpufleet.console.view import FleetView
from gpufleet.domain.decisions import Past
from tests.console.fleet import busy_view

TOKEN = "a-token-of-the-console"  # noqa: S105 - of a test


@dataclass
class FakeBook:
    """Remembers what was asked of it."""

    fleets: list[FleetView] = field(default_factory=lambda: [busy_view()])
    kept: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    told: list[Notice] = field(default_factory=list[Notice])
    refuse: str = ""
    broken: str = ""

    def views(self) -> Sequence[FleetView]:
        if self.broken:
            raise server.BookError(self.broken)
        return self.fleets

    def about(self, view: FleetView, instance: str) -> Sequence[Past]:
        return view.read.acts

    def costs(self, view: FleetView) -> str:
        return f"<!doctype html><title>costs of {view.name}</title>"

    def keep(self, view: FleetView, instance: str, user: str) -> str:
        if self.refuse:
            raise server.KeepError(self.refuse)
        self.kept.append((view.name, instance, user))
        return f"{instance} is kept."

    def metrics(self) -> str:
        if self.broken:
            raise server.BookError(self.broken)
        return exporter.render([exporter.Facts(environment="prod", targets={"chat": 3})])

    def tell(self, notice: Notice) -> None:
        if self.broken:
            raise server.BookError(self.broken)
        self.told.append(notice)


@contextmanager
def serving(book: FakeBook, access: Access | None = None) -> Iterator[str]:
    """The console's address."""
    running = server.serve(server.Console(book, access or Access(token=TOKEN)), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()
