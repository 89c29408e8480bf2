"""The commands of `gpufleet`, by section of the help. A module is imported when one of its commands runs: the import
of all modules takes seconds.
"""

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpufleet.domain import garbage


class CommandEntry(NamedTuple):
    """A command, or a group of commands."""

    name: str
    module: str
    """Module of this package. It adds the command in `register(app)`."""
    summary: str
    """For the list of commands."""


LOCAL: Final = "local"
"""The group that the distribution of the embedded cloud adds."""
SECTIONS: Final[Mapping[str, tuple[CommandEntry, ...]]] = {
    "Look": (CommandEntry("scan", "scan", "Find idle GPUs in your accounts; reads only"),),
    "Set up": (
        CommandEntry("doctor", "doctor", "Check this machine's tools, or an account's quotas"),
        CommandEntry("init", "init", "Draft a settings file from a scan"),
        CommandEntry("import", "import_group", "Adopt an existing group into a pool"),
        CommandEntry("bootstrap", "bootstrap", "Create an environment's state bucket, key and secrets"),
        CommandEntry("settings", "settings", "Check, compare and describe settings files"),
        CommandEntry("policies", "policies", "List and explain policies; check a plan"),
        CommandEntry("plan-cost", "plan_cost", "Compute the cost of a plan before it is spent"),
    ),
    "Operate": (
        CommandEntry("status", "status", "Show fleets, pools, draining instances and alerts"),
        CommandEntry("top", "top", "Show instances on a live screen"),
        CommandEntry("watch", "watch", "Run watchdogs: one pass, or as a daemon"),
        CommandEntry("keep", "brakes", "Protect an instance or a pool from the idle watchdog"),
        CommandEntry("pause", "brakes", "Pause watchdogs for an instance, a pool or all"),
        CommandEntry("resume", "brakes", "Release pauses, keeps and held targets"),
        CommandEntry("target", "brakes", "Show the targets of pools, or hold one"),
        CommandEntry("drain", "brakes", "Drain an instance: finish requests, accept none"),
        CommandEntry("rollout", "rollout", "Replace instances of an older template"),
        CommandEntry("console", "console", "Serve a web page: status, costs and decisions"),
        CommandEntry("slack", "slack", "Receive Slack clicks; send refused messages again"),
    ),
    "Costs": (
        CommandEntry("report", "report", "Report cost, waste and savings"),
        CommandEntry("prices", "prices", "List and refresh prices"),
        CommandEntry("choose", "choose", "Rank machine types by USD per million tokens"),
        CommandEntry("size", "size", "Compute whether a model fits on GPUs"),
        CommandEntry("ledger", "ledger", "Verify, export and back up the ledger"),
        CommandEntry("replay", "replay", "Compare the watchdogs with other rules on histories"),
    ),
    "Serve models": (
        CommandEntry("model", "models", "Add, approve, roll out and roll back models"),
        CommandEntry("cache", "cache", "Manage models on local disks"),
        CommandEntry("router", "router", "Run the endpoint for all models of a fleet"),
        CommandEntry("engines", "engines", "Explain engines' metrics; check a page"),
        CommandEntry("accelerators", "accelerators", "Explain accelerators' metrics; check pages"),
    ),
    "Hosts": (
        CommandEntry("monitoring", "monitoring", "Configure Prometheus, Alertmanager and Grafana"),
        CommandEntry("images", "images", "Copy container images for offline machines"),
        CommandEntry("bundle", "bundle", "Pack and upload a release for control hosts"),
        CommandEntry("upgrade", "upgrade", "Change the release of this control host"),
        CommandEntry("host", "host", "Commands that systemd units run on control hosts"),
        CommandEntry(LOCAL, LOCAL, "Run the embedded cloud on this machine"),
    ),
}
ENTRIES: Final[Mapping[str, CommandEntry]] = {entry.name: entry for entries in SECTIONS.values() for entry in entries}
"""All commands, by name."""


class LazyCommands(TyperGroup):
    """All commands by name and summary. Help and completion of names import no module."""

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = {
            entry.name: TyperCommand(entry.name, help=entry.summary) for entry in ENTRIES.values()
        }
        super().__init__(**attributes)
        self._loads = True

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, with its module imported. None: unknown."""
        entry = ENTRIES.get(cmd_name)
        if entry is None or not self._loads:
            return super().get_command(ctx, cmd_name)
        with garbage.collector_paused(kept=True):
            loaded = get_command(build(entry.module))
        assert isinstance(loaded, TyperGroup)
        return loaded.commands[cmd_name]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the names of commands and options."""
        self._loads = False
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._loads = True

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands by section."""
        width = max(map(len, ENTRIES))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])


def lazy() -> typer.Typer:
    """Return all commands. A module is imported when its command runs."""
    return _app(cls=LazyCommands)


def build(module: str | None = None) -> typer.Typer:
    """Return all commands, or those of one module, with their modules imported."""
    app = _app()
    for name in (module,) if module else dict.fromkeys(entry.module for entry in ENTRIES.values()):
        if name == LOCAL:
            _register_local(app)
        else:
            importlib.import_module(f"cli.{name}").register(app)
    return app


def _app(**options: Any) -> typer.Typer:
    app = typer.Typer(
        name="gpufleet",
        help="Infrastructure as code and FinOps control plane for GPU inference.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        **options,
    )
    app.callback()(_root)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if wanted:
        from importlib.metadata import version  # 25 ms

        typer.echo(f"gpufleet {version('gpu-fleet')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Keep `gpufleet` a group, however few commands there are."""


def _register_local(app: typer.Typer) -> None:
    from cli import plugins  # imported here: importlib.metadata costs 25 ms at the start of a command

    for register in plugins.load(plugins.COMMANDS, LOCAL):
        register(app)
        return

    def local() -> None:
        """Run the embedded cloud on a developer's machine. It is a separate distribution, gpu-fleet-localcloud."""
        from app.errors import AppError

        raise AppError(
            "`gpufleet local`: the distribution gpu-fleet-localcloud is not installed: run `make setup` in a clone,"
            " or install it with gpu-fleet (`uv pip install ./localcloud`)"
        )

    app.command(name=LOCAL, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(local)
