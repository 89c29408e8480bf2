"""Generates the pages of docs/reference from the code: `python -m scripts.reference`. A test checks them."""

import argparse
import html
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from cli.commands import build
from components.aws import permissions as aws_permissions
from components.aws.identities import Allowed
from components.gcp import permissions as gcp_permissions
from gpufleet.clouds.aws.signed import ACTIONS as AGENT_ACTIONS
from gpufleet.domain.decisions import Reason
from gpufleet.domain.durations import render as render_duration
from gpufleet.domain.parsed import is_list, is_map
from gpufleet.domain.policies import (
    EvidenceSource,
    IdlePolicy,
    OrphanAction,
    OrphanPolicy,
    ScalePolicy,
    ScheduleRule,
    SpotPolicy,
)
from gpufleet.settings.document.alerts import AlertSettings
from gpufleet.settings.environment import Settings
from gpufleet.settings.schema import SettingsSchema
from hosts.monitoring.alerts import alerts
from policies.pack import RULES
from scripts.machine_reference import machine_lines
from serving import metrics
from serving.accelerators import metrics as accelerators
from serving.engines import CONTRACTS

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
NOTE: Final = "<!-- Written by `python -m scripts.reference`; change the code, not this page. -->\n"


def pages() -> dict[str, str]:
    """Return the text of every generated page, by file name."""
    return {
        "metrics.md": _page("Metrics", _metrics()),
        "commands.md": _page("Commands", _commands()),
        "policies.md": _page("Policies", _policies()),
        "settings.md": _page("Settings", _settings()),
        "permissions.md": _page("Permissions", _permissions()),
        "alerts.md": _page("Alerts", _alerts()),
        "engines.md": _page("Engines", _engines()),
        "machines.md": _page("Machine types", machine_lines()),
        "reasons.md": _page("Reasons, in short", _reasons()),
    }


def _page(title: str, lines: Iterator[str]) -> str:
    return f"# {title}\n\n{NOTE}\n" + "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return _BARS.sub(_in_html, " ".join(text.split())).replace("|", "\\|")


_BARS: Final = re.compile(r"`([^`]*\|[^`]*)`")
"""Matches code that contains a bar: no notation within backticks works on both GitHub and the site."""


def _in_html(code: re.Match[str]) -> str:
    text = html.escape(code[1], quote=False)
    return "<code>" + re.sub(r"[|*\[\]\\]", lambda found: f"&#{ord(found[0])};", text) + "</code>"


def _metrics() -> Iterator[str]:
    yield "What watchdogs, reports, alerts and dashboards read, and what our own parts serve.\n"
    known = [*metrics.ALL.values(), *accelerators.ALL.values()]
    for source in metrics.Source:
        yield f"## {source.value} (port {metrics.PORTS[source]})\n"
        yield "| metric | type | unit | meaning |\n|---|---|---|---|"
        for metric in sorted({m for m in known if m.source is source}, key=lambda m: m.name):
            yield f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {_cell(metric.meaning)} |"
        yield ""


def _commands() -> Iterator[str]:
    yield "`gpufleet --help` prints the same. Exit codes: 0 done, 1 failed, 2 invalid usage, 3 done with findings.\n"
    yield from _command("gpufleet", get_command(build()))


def _command(name: str, command: Any) -> Iterator[str]:
    # typer bundles its own click, so detect types by their attributes
    if hasattr(command, "commands"):
        for sub in sorted(sub for sub, one in command.commands.items() if not one.hidden):
            yield from _command(f"{name} {sub}", command.commands[sub])
        return
    arguments = [str(p.name).upper() for p in command.params if p.param_type_name == "argument"]
    yield f"## `{' '.join([name, *arguments])}`\n"
    yield f"{_cell((command.help or '').split(chr(12))[0])}\n"
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    if options:
        yield "| option | meaning | default |\n|---|---|---|"
        for option in options:
            names = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            default = "" if option.default in (None, False, ()) or callable(option.default) else f"`{option.default}`"
            yield f"| {names} | {_cell(option.help or '')} | {default} |"
        yield ""


def _policies() -> Iterator[str]:
    yield "Each rule refuses the plan. An exception in the settings names rule, resource, owner, reason and end, and"
    yield "the type where the rule needs it: `gpufleet policies explain RULE` prints one.\n"
    yield "| rule | checks | reason | remedy |\n|---|---|---|---|"
    for rule in RULES:
        yield f"| `{rule.id}` | {_cell(rule.judges)} | {_cell(rule.reason)} | {_cell(rule.remedy)} |"


def _alerts() -> Iterator[str]:
    yield "What `gpufleet monitoring render` writes for Prometheus, with the shipped thresholds; each name leads to"
    yield "what to do. **page**: act now; **ticket**: act today. `LatencyHigh` is for pools with an objective.\n"
    yield "| alert | severity | when | for | message |\n|---|---|---|---|---|"
    for alert in alerts(AlertSettings(latency_p99_s={"POOL": 10}, spot_pools=("POOL",))):
        link = f"[{alert.name}](../runbook.md#{alert.name.lower()})"
        summary = _VARIABLE.sub(lambda found: (found[1] or "VALUE").upper(), alert.summary)
        lasts = render_duration(alert.lasts)
        yield f"| {link} | {alert.severity.value} | {_cell(f'`{alert.expression}`')} | {lasts} | {_cell(summary)} |"


_VARIABLE: Final = re.compile(r"{{ \$(?:labels\.(\w+)|value).*?}}")


def _engines() -> Iterator[str]:
    yield "What the fleet can do with each inference engine. `gpufleet engines show ENGINE` explains its numbers."
    yield "Numbers of a release that is not understood prove nothing: its instances are kept.\n"
    yield "- **key**: who requires it. A gate is an HAProxy on the instance, in front of an engine on loopback."
    yield "- **release**: how the fleet learns it. `engine.version` is a setting of the pool."
    yield "- **run**: what the project ran. None of it on GPUs; the rest is read from the engine's source.\n"
    yield "| engine | started by the fleet | key | release | releases understood | run |\n|---|---|---|---|---|---|"
    for kind, contract in sorted(CONTRACTS.items()):
        launch = contract.launch
        starts = "no, only read" if launch is None else "yes" if launch.since is None else f"from {launch.since}"
        key = "" if launch is None else "engine" if launch.gate is None else "gate"
        release = "reported" if contract.probes.version else "`engine.version`"
        parts = (contract.title, f"`{kind}`", starts, key, release, str(contract.tested), contract.run or "no")
        yield "| {} ({}) | {} | {} | {} | {} | {} |".format(*parts)


def _reasons() -> Iterator[str]:
    yield "Every reason that a decision may carry: its code, as the ledger and `reason_code` have it, and its"
    yield "sentence, as people see it. Each links to its entry. A code of a newer release is shown as"
    yield "`unknown (CODE)`.\n"
    for reason in Reason:
        anchor = re.sub(r"\W+", "-", reason.sentence.lower())
        yield f"- `{reason}`: [{reason.sentence}](../reasons.md#{anchor})"


READING: Final = ("Describe", "Get", "List", "get", "list")
"""Prefixes of calls that change nothing."""


def _permissions() -> Iterator[str]:
    yield "What each kind of machine may do, from `components/{aws,gcp}/permissions.py`; tests compare them with the"
    yield "calls that the code makes. **look** is enough for dry passes; **act** is what `--apply` adds.\n"
    places = {
        "bucket": "BUCKET",
        "region": "REGION",
        "account": "ACCOUNT",
        "environment": "ENV",
    }
    keys = ("/gpu-fleet/ENV/engine-key", "/gpu-fleet/ENV/order-key")
    control = aws_permissions.of_control(**places, notices="QUEUE", secrets=keys)
    yield "## AWS: watchdogs and reports (control host)\n"
    yield from _allowed(control)
    yield "\n## AWS: rules for instances outside every pool (control host)\n"
    yield "Without such a rule, none of these is granted. The table is for two example rules: one stops instances by"
    yield "a tag, the other marks instances by metrics of CloudWatch.\n"
    yield from _allowed(_of_orphans())
    yield "\n## AWS: GPU instances (node agent)\n"
    yield from _allowed(aws_permissions.of_instances(**places, engine_key=keys[0]))
    yield f"\nThe agent calls {', '.join(f'`{action}`' for action in sorted(AGENT_ACTIONS))}."
    yield "\n## AWS: routers on machines of their own\n"
    routers = {key: places[key] for key in ("bucket", "region", "account")}
    yield from _allowed(aws_permissions.of_routers(**routers, engine_key=keys[0]))
    yield "\n## AWS: sessions of people (SSM; control host and routers)\n"
    yield from _allowed(aws_permissions.of_sessions(region="REGION", account="ACCOUNT"))
    yield "\n## Google Cloud: watchdogs and reports (a custom role)\n"
    yield "| permission | for |\n|---|---|"
    for permission in sorted(gcp_permissions.CONTROL):
        yield f"| `{permission}` | {_use(permission.rsplit('.', 1)[-1])} |"
    yield "\nIn a role of its own, on instances of the environment's pools alone, by a condition on their names; on"
    yield "all where a rule looks at instances outside every pool:\n"
    yield "| permission | for |\n|---|---|"
    for permission in gcp_permissions.MARKS:
        yield f"| `{permission}` | act |"
    yield "\nOn all instances, where a rule for those outside every pool stops:\n"
    yield "| permission | for |\n|---|---|"
    for permission in gcp_permissions.STOP:
        yield f"| `{permission}` | act |"
    yield "\n## Google Cloud: routers on machines of their own (a custom role)\n"
    yield "| permission | for |\n|---|---|"
    for permission in gcp_permissions.ROUTER:
        yield f"| `{permission}` | {_use(permission.rsplit('.', 1)[-1])} |"
    yield "\nAnd the secret of the engine key (`roles/secretmanager.secretAccessor` on that one).\n"
    yield "## Google Cloud: on the bucket\n"
    yield "| who | role | reads | lists |\n|---|---|---|---|"
    for who, roles in (
        ("GPU instances", gcp_permissions.INSTANCE_ON_BUCKET),
        ("routers", gcp_permissions.ROUTER_ON_BUCKET),
        ("control host", gcp_permissions.CONTROL_ON_BUCKET),
    ):
        for held in roles:
            reads = ", ".join(f"`{prefix}`" for prefix in held.prefixes)
            lists = ", ".join(f"`{prefix}`" for prefix in held.listed) or "none"
            yield f"| {who} | `{held.role}` | {reads or 'all'} | {lists if reads else 'all'} |"


def _of_orphans() -> tuple[Allowed, ...]:
    stopping = OrphanPolicy(name="by-tag", action=OrphanAction.STOP, tags={"TAG": "VALUE"})
    listening = OrphanPolicy(name="by-age", evidence=EvidenceSource.CLOUDWATCH, older_than=timedelta(days=7))
    return aws_permissions.of_orphans(
        region="REGION", account="ACCOUNT", environment="ENV", rules=(stopping, listening)
    )


def _allowed(statements: tuple[Allowed, ...]) -> Iterator[str]:
    yield "| action | for | on | only if |\n|---|---|---|---|"
    for statement in statements:
        on = ", ".join(f"`{resource}`" for resource in statement.resources)
        when = "; ".join(
            f"{key} is given" if operator == "Null" else f"{key} = {value}"
            for operator, test in statement.when.items()
            for key, value in test.items()
        )
        for action in sorted(statement.actions):
            yield f"| `{action}` | {_use(action.rsplit(':', 1)[-1])} | {_cell(on)} | {_cell(when)} |"


def _use(call: str) -> str:
    return "look" if call.startswith(READING) else "act"


def _settings() -> Iterator[str]:
    yield "`stacks/config/Pulumi.<cloud>-<environment>.yaml`, under `gpu-fleet:fleet`. `gpufleet settings check FILE`"
    yield "checks a file; `gpufleet settings schema` prints the JSON Schema for editors.\n"
    schema = Settings.model_json_schema(schema_generator=SettingsSchema)
    yield from _object("fleet", schema)
    for name, definition in sorted({**schema.get("$defs", {}), **dict(_within(schema))}.items()):
        if definition.get("type") == "object":
            yield from _object(name, definition)
        else:
            yield f"## {name}\n\n{_cell(_form(definition))}\n"


def _within(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the nested objects of a schema: title and definition."""
    for each in schema.values() if is_map(schema) else schema if is_list(schema) else ():
        if is_map(each) and "properties" in each and each.get("title") in _TITLES:
            yield each["title"], each
        yield from _within(each)


def _object(name: str, definition: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}\n"
    if description := definition.get("description"):
        yield f"{_cell(description)}\n"
    yield "| field | form | default | meaning |\n|---|---|---|---|"
    required = set(definition.get("required", ()))
    for field, form in definition.get("properties", {}).items():
        default = "required" if field in required else f"`{form.get('default')}`"
        meaning = _cell(form.get("description", ""))
        yield f"| `{field}` | {_cell(_form(form))} | {_cell(default)} | {meaning} |"
    yield ""


_TITLES: Final = {policy.__name__ for policy in (IdlePolicy, SpotPolicy, ScalePolicy, ScheduleRule, OrphanPolicy)}


def _form(form: Mapping[str, Any]) -> str:
    if "$ref" in form:
        name = str(form["$ref"]).rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if form.get("title") in _TITLES:
        return f"[{form['title']}](#{form['title'].lower()})"
    if "anyOf" in form:
        return " or ".join(_form(choice) for choice in form["anyOf"])
    if "enum" in form or "const" in form:
        return ", ".join(f"`{value}`" for value in form.get("enum", [form.get("const")]))
    if form.get("type") == "array":
        return f"list of {_form(form.get('items', {}))}"
    limits = [f"{word} {form[key]}" for key, word in (("minimum", "≥"), ("maximum", "≤")) if key in form]
    pattern = [f"`{form['pattern']}`"] if "pattern" in form else []
    return " ".join([str(form.get("type", "any")), *limits, *pattern])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages. Return the exit code. 0: written, or all current. 1: a page is not current (`--check`). 2:
    wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="python -m scripts.reference", description="Write the pages of docs/reference from the code."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that are not current")
    options = parser.parse_args(arguments)
    if options.check:
        old = stale()
        for name in old:
            print(f"docs/reference/{name} is not current: run `python -m scripts.reference`", file=sys.stderr)
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")
        print(f"wrote docs/reference/{name}", file=sys.stderr)
    return 0


def stale() -> list[str]:
    """Return the names of the pages that are missing or differ from the generated text."""
    return [
        name
        for name, text in pages().items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text("utf-8") != text
    ]


if __name__ == "__main__":
    sys.exit(main())
