"""`python -m scripts.judge_pull_request --plans DIR --checkout DIR --out FILE`: checks a pull request with the code
of the base branch.

It runs from a checkout of the base branch. The plans and the checkout of the pull request are data: they are parsed,
but nothing in them is imported or executed. Every environment of the base branch or the pull request needs a plan, so
a pull request cannot bypass the rules by omitting one.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from gpufleet.settings import KEY
from gpufleet.settings.file import FileError, read_config
from hosts.control.root_files import open_regular

ROOT: Final = Path(__file__).resolve().parents[1]
SETTINGS: Final = ("stacks", "config")
LOCAL: Final = "-local"
NAME: Final = re.compile(r"(aws|gcp)-[a-z]([a-z0-9-]{0,14}[a-z0-9])?")
LARGEST_PLAN: Final = 64 * 1024 * 1024
LARGEST_SETTINGS: Final = 1024 * 1024
MAX_STACKS: Final = 50
LIMIT_S: Final = 300
LARGEST_PART: Final = 8_000
"""Maximum number of characters of one command's output in the report."""
LARGEST_REPORT: Final = 55_000
"""Maximum number of characters. A comment on GitHub may have 65,536."""

Judge = Callable[[Path, Path], tuple[int, str]]
"""Checks a plan with its settings file. Returns the exit code of the command and its output."""


class DataError(Exception):
    """A file of the pull request cannot be used. The message contains its name and the reason."""


@dataclass(slots=True)
class Verdict:
    """The result for one environment."""

    stack: str
    problems: list[str] = field(default_factory=list[str])
    exceptions: list[str] = field(default_factory=list[str])
    """Lines that start with `+` or `-`: differences of the exceptions in the settings from the base branch."""
    rules: str = ""
    cost: str = ""


def judge(plans: Path, checkout: Path, base: Path, check: Judge, cost: Judge) -> tuple[Verdict, ...]:
    """Return a verdict on each environment. Raises DataError if the folders themselves are not usable."""
    theirs, ours = _settings_folder(checkout), base.joinpath(*SETTINGS)
    known, proposed, planned = _stacks(ours), _stacks(theirs), _names(plans, "", ".json")
    stacks = sorted({*known, *proposed, *planned})
    if len(stacks) > MAX_STACKS:
        raise DataError(f"{len(stacks)} environments: at most {MAX_STACKS} are judged")
    with tempfile.TemporaryDirectory(prefix="gpufleet-judge-") as folder:
        return tuple(_verdict(stack, plans, theirs, ours, Path(folder), check, cost) for stack in stacks)


def _verdict(stack: str, plans: Path, theirs: Path, ours: Path, folder: Path, check: Judge, cost: Judge) -> Verdict:
    verdict = Verdict(stack)
    if not NAME.fullmatch(stack):
        verdict.problems.append(f"{stack!r} is not a valid name of an environment, such as aws-dev or gcp-prod")
        return verdict
    # Use copies with safe names: the check runs on the content that was read, and names from the pull request cannot
    # act as options or links
    plan, settings = folder / f"{stack}.json", folder / f"Pulumi.{stack}.yaml"
    try:
        plan.write_bytes(_read(plans / plan.name, LARGEST_PLAN, "make it with `python -m scripts.plan_stacks`"))
        why = "if this pull request removes the environment, an administrator must merge it"
        settings.write_bytes(_read(theirs / settings.name, LARGEST_SETTINGS, why))
        config = read_config(settings)
        verdict.exceptions = _difference(_exceptions(_base_config(ours / settings.name)), _exceptions(config))
        verdict.problems += _mismatches(stack, plan, config)
    except (DataError, FileError) as error:
        verdict.problems.append(str(error).replace(f"{folder}/", ""))
        return verdict
    code, verdict.rules = check(plan, settings)
    if code == 1:
        verdict.problems.append("the rules of the base branch refuse the plan")
    elif code != 0:
        verdict.problems.append(f"the rules of the base branch could not judge the plan (exit {code})")
    code, verdict.cost = cost(plan, settings)
    if code != 0:
        verdict.problems.append(f"the plan cannot be priced (exit {code})")
    return verdict


def _read(path: Path, largest: int, remedy: str) -> bytes:
    try:
        with open_regular(path) as file:
            body = file.read(largest + 1)
    except FileNotFoundError as error:
        raise DataError(f"{path.name} is missing: {remedy}") from error
    except OSError as error:
        raise DataError(f"{path.name}: is not a regular file that can be read ({error.strerror or error})") from error
    if len(body) > largest:
        raise DataError(f"{path.name}: is larger than {largest // 2**20} MiB")
    return body


def _settings_folder(checkout: Path) -> Path:
    folder = checkout
    for part in SETTINGS:
        folder /= part
        if folder.is_symlink() or not folder.is_dir():
            raise DataError(f"{'/'.join(SETTINGS)} of the pull request: {part} is not a folder")
    return folder


def _stacks(folder: Path) -> frozenset[str]:
    return frozenset(name for name in _names(folder, "Pulumi.", ".yaml") if not name.endswith(LOCAL))


def _names(folder: Path, prefix: str, suffix: str) -> frozenset[str]:
    if not folder.is_dir():
        return frozenset()
    names = (path.name for path in folder.iterdir() if path.name.startswith(prefix) and path.name.endswith(suffix))
    return frozenset(name.removeprefix(prefix).removesuffix(suffix) for name in names)


def _base_config(path: Path) -> Mapping[str, Any]:
    return read_config(path) if path.exists() else {}


def _exceptions(config: Mapping[str, Any]) -> frozenset[str]:
    found: Any = config.get(KEY)
    for name in ("policies", "exceptions"):
        found = cast(Mapping[str, Any], found).get(name) if isinstance(found, Mapping) else None
    items = cast(list[Any], found) if isinstance(found, list) else []
    return frozenset(json.dumps(item, sort_keys=True, default=str) for item in items)


def _difference(base: frozenset[str], proposed: frozenset[str]) -> list[str]:
    return [f"+ {line}" for line in sorted(proposed - base)] + [f"- {line}" for line in sorted(base - proposed)]


def _mismatches(stack: str, plan: Path, config: Mapping[str, Any]) -> list[str]:
    """Return mismatches of the plan with this environment and these settings. The engine writes both into the
    plan.
    """
    try:
        digest: Any = json.loads(plan.read_bytes())
        steps: list[Any] = digest["steps"]
        urns = [str(step["urn"]) for step in steps]
        made_with = {str(name): _plain(value) for name, value in digest["config"].items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        return [f"{plan.name}: is not what `pulumi preview --json --show-sames` prints ({type(error).__name__})"]
    problems: list[str] = []
    if not urns or any(not urn.startswith(f"urn:pulumi:{stack}::gpu-fleet::") for urn in urns):
        problems.append(f"{plan.name}: is not a plan of {stack}")
    if made_with != {str(name): _plain(value) for name, value in config.items()}:
        problems.append(f"{plan.name}: was made with other settings than {'/'.join(SETTINGS)}/Pulumi.{stack}.yaml")
    return problems


def _plain(value: Any) -> Any:
    """Convert a value from YAML and its text from the engine to the same value. The engine writes 15.0 as 15."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return json.loads(json.dumps(value, default=str))


def policies_check(plan: Path, settings: Path) -> tuple[int, str]:
    """Run `gpufleet policies check` of this checkout."""
    return _gpufleet("policies", "check", str(plan), "--settings", str(settings))


def plan_cost(plan: Path, settings: Path) -> tuple[int, str]:
    """Run `gpufleet plan-cost` of this checkout."""
    return _gpufleet("plan-cost", str(plan), "--markdown")


def _gpufleet(*arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 2, f"not done in {LIMIT_S} s"
    return done.returncode, f"{done.stdout}\n{done.stderr}".strip()


def report(verdicts: Sequence[Verdict]) -> str:
    """Return the report as plain text: printable characters only, and short enough for a comment."""
    passed = not any(verdict.problems for verdict in verdicts)
    parts = [
        f"{'PASSED' if passed else 'REFUSED'} by the policy pack of the base branch",
        "Each plan covers a whole environment. What runs there today is unknown, so costs are totals, not changes.",
    ]
    for verdict in verdicts:
        lines = [f"== {verdict.stack}: {'refused' if verdict.problems else 'passed'}"]
        lines += [f"! {problem}" for problem in verdict.problems]
        if verdict.exceptions:
            lines.append("Exceptions that differ from the base branch (the code owners decide on them):")
            lines += verdict.exceptions
        lines += [part for part in (_cut(verdict.rules, LARGEST_PART), _cut(verdict.cost, LARGEST_PART)) if part]
        parts.append("\n".join(lines))
    text = "\n\n".join(parts)
    return _cut("".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)) + "\n"


def _cut(text: str, most: int = LARGEST_REPORT) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} more characters]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: every plan passes. 1: a plan is refused or missing."""
    parser = argparse.ArgumentParser(description="Judge the plans of a pull request by the rules of this checkout.")
    parser.add_argument("--plans", type=Path, required=True, help="folder of STACK.json, made by the pull request")
    parser.add_argument("--checkout", type=Path, required=True, help="checkout of the pull request; read as data")
    parser.add_argument("--out", type=Path, required=True, help="file for the report")
    given = parser.parse_args(arguments)
    try:
        verdicts = judge(given.plans, given.checkout, ROOT, policies_check, plan_cost)
        text, code = report(verdicts), 1 if any(verdict.problems for verdict in verdicts) else 0
    except (DataError, FileError) as error:
        text, code = f"REFUSED: {error}\n", 1
    given.out.write_text(text, "utf-8")
    # do not print the report: CI would execute lines of it that look like workflow commands
    print(f"{'refused' if code else 'passed'}; the report is {given.out}")
    return code


if __name__ == "__main__":
    sys.exit(main())
