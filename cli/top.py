"""`gpufleet top`: a live screen of instances, sorted and filtered, with the decisions about one of them."""

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.live import Live
from sqlalchemy.exc import SQLAlchemyError

from app.errors import AppError, ErrorCode
from app.fleet_view import Costs, Watched
from app.fleets import load
from app.ledgers import ledger_name
from app.wiring import open_engine
from cli.options import FleetOption
from cli.output import STDOUT, Exit
from cli.status import EveryOption, pause
from gpufleet.console import ledger_data
from gpufleet.console.top import Screen, Sort, after_key, draw
from gpufleet.console.view import FleetView
from gpufleet.domain.decisions import LedgerEntry


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    fleet: FleetOption = None,
    every: EveryOption = "2s",
    sort: Annotated[Sort, typer.Option("--sort", help="Order of the instances.")] = Sort.IDLE,
    pool: Annotated[str, typer.Option("--pool", help="Show only instances of this pool. Default: all pools.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Print the screen once and exit, for scripts.")] = False,
) -> None:
    """Show instances on a live screen: GPU activity, queue, KV cache, tokens a second, USD an hour and phase.

    The last line of the screen lists the keys.
    """
    documents = load(fleet)
    names = sorted({entry.name for document in documents for entry in document.pools})
    if pool and pool not in names:
        raise AppError(f"--pool: no pool {pool!r}; pools: {', '.join(names) or 'none'}", ErrorCode.WRONG_USE)
    fleets = [Watched(document, Costs.NONE) for document in documents]
    screen = Screen(sort=sort, pool=pool)
    if once or not (STDOUT.is_terminal and sys.stdin.isatty()):
        views = [watched.look() for watched in fleets]
        STDOUT.print(draw(screen, views, (), lines=10_000))
        if any(view.read.instances is None for view in views):
            raise typer.Exit(Exit.FAILED)
        return
    _live(fleets, screen, pause(every).total_seconds())


def _live(fleets: list[Watched], screen: Screen, every_s: float) -> None:
    views = [watched.look() for watched in fleets]
    looked = _FleetReader(fleets, every_s)
    with _keys() as keys, Live(console=STDOUT, auto_refresh=False, screen=True) as live:
        looked.thread.start()
        try:
            while not screen.over:
                views = looked.views or views
                acts = _decisions_about(screen, views)
                live.update(draw(screen, views, acts, lines=STDOUT.height - 4), refresh=True)
                if (key := keys(0.25)) is not None:
                    screen = after_key(screen, key, views)
        except KeyboardInterrupt:
            return
        finally:
            looked.stop.set()


class _FleetReader:
    """Reads the fleets repeatedly in a thread, while the main thread handles keys."""

    def __init__(self, fleets: list[Watched], every_s: float) -> None:
        self.views: list[FleetView] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(fleets, every_s), name="look", daemon=True)

    def _run(self, fleets: list[Watched], every_s: float) -> None:
        while not self.stop.wait(every_s):
            try:
                self.views = [watched.look() for watched in fleets]
            except (AppError, SQLAlchemyError):
                continue  # the last view stays, with its time


def _decisions_about(screen: Screen, views: list[FleetView]) -> tuple[LedgerEntry, ...]:
    if not screen.chosen:
        return ()
    for view in views:
        if any(one.id == screen.chosen for one in view.instances):
            document = view.read.document
            engine = open_engine(document, reading=True)
            try:
                return tuple(ledger_data.about(engine, ledger_name(document), screen.chosen))
            finally:
                engine.dispose()  # this runs several times a second
    return ()


@contextmanager
def _keys() -> Generator["_KeyReader"]:
    """Reads the keyboard key by key."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _KeyReader()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class _KeyReader:
    """Returns one key, or None after a limit."""

    def __call__(self, limit_s: float) -> str | None:
        import os
        import select

        end = time.monotonic() + limit_s
        if not select.select([sys.stdin], [], [], max(end - time.monotonic(), 0))[0]:
            return None
        found = os.read(sys.stdin.fileno(), 8).decode(errors="replace")
        return {"\x1b[A": "up", "\x1b[B": "down", "\r": "enter", "\n": "enter", "\x1b": "escape"}.get(
            found, found[:1]
        )
